import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The load of bench_vs_rocketmq: one JVM that stays warm, a command per line on stdin, an answer per line.
 *
 * produce NAMESRV TOPIC THREADS BYTES SECONDS    each thread sends one message after the other, synchronously
 *     → ok SENT NOT_OK FAILED P50_US P99_US NANOS
 * consume NAMESRV TOPIC GROUP COUNT SECONDS      a push consumer from the first offset on
 *     → ok RECEIVED NANOS                        from its first message to the COUNTth
 * A command that fails is answered "error REASON".
 */
public class Bench {
    private static final int LATENCIES_MAX = 1 << 21;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] word = line.trim().split(" ");
            String answer;
            try {
                answer = word[0].equals("produce") ? produce(word) : consume(word);
            } catch (Exception e) {
                answer = "error " + String.valueOf(e).replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }

    private static String produce(String[] word) throws Exception {
        final String topic = word[2];
        final int threads = Integer.parseInt(word[3]);
        final byte[] body = new byte[Integer.parseInt(word[4])];
        Arrays.fill(body, (byte) 'x');
        final double seconds = Double.parseDouble(word[5]);
        final DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(word[1]);
        producer.setInstanceName("bench-" + System.nanoTime());
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        try {
            return load(producer, topic, threads, body, seconds);
        } finally {
            producer.shutdown();
        }
    }

    private static String load(DefaultMQProducer producer, String topic, int threads, byte[] body, double seconds)
        throws Exception {
        producer.send(new Message(topic, body)); // route and connection
        final AtomicLong notOk = new AtomicLong();
        final AtomicLong failed = new AtomicLong();
        final int[][] latencies = new int[threads][LATENCIES_MAX / threads];
        final int[] sent = new int[threads];
        final long begin = System.nanoTime();
        final long end = begin + (long) (seconds * 1e9);
        Thread[] workers = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            final int own = i;
            workers[i] = new Thread(() -> {
                long before = System.nanoTime();
                while (before < end) {
                    try {
                        SendResult result = producer.send(new Message(topic, body));
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            notOk.incrementAndGet();
                        }
                    } catch (Exception e) {
                        failed.incrementAndGet();
                    }
                    long after = System.nanoTime();
                    latencies[own][sent[own] % latencies[own].length] = (int) ((after - before) / 1000);
                    sent[own]++;
                    before = after;
                }
            });
        }
        for (Thread worker : workers) {
            worker.start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        long nanos = System.nanoTime() - begin;
        int[] all = new int[0];
        long total = 0;
        for (int i = 0; i < threads; i++) {
            int kept = Math.min(sent[i], latencies[i].length);
            int[] more = Arrays.copyOf(all, all.length + kept);
            System.arraycopy(latencies[i], 0, more, all.length, kept);
            all = more;
            total += sent[i];
        }
        Arrays.sort(all);
        return String.format("ok %d %d %d %d %d %d", total, notOk.get(), failed.get(),
            all[all.length / 2], all[(int) (all.length * 0.99)], nanos);
    }

    private static String consume(String[] word) throws Exception {
        final long count = Long.parseLong(word[4]);
        final AtomicLong received = new AtomicLong();
        final AtomicLong first = new AtomicLong();
        final AtomicLong last = new AtomicLong();
        final CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(word[3]);
        consumer.setNamesrvAddr(word[1]);
        consumer.setInstanceName("bench-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(word[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            first.compareAndSet(0, now);
            if (received.addAndGet(messages.size()) >= count) {
                last.compareAndSet(0, now);
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            boolean all = done.await((long) (Double.parseDouble(word[5]) * 1000), TimeUnit.MILLISECONDS);
            long until = all ? last.get() : System.nanoTime();
            return String.format("ok %d %d", received.get(), until - first.get());
        } finally {
            consumer.shutdown();
        }
    }
}
