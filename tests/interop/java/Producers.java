import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQProducer: sends of every kind, a load in the background, questions about messages, requests. */
class Producers implements Driver.Handle {
    final DefaultMQProducer producer;
    private volatile Load load;

    Producers(JSONObject request) throws Exception {
        this(request, new DefaultMQProducer(
            request.getString("group"), Driver.aclHook(request.getJSONObject("options"))));
    }

    Producers(JSONObject request, DefaultMQProducer producer) throws Exception {
        this.producer = producer;
        Driver.configure(producer, request);
        prepare(request);
        producer.start();
    }

    void prepare(JSONObject request) {
    }

    @Override
    public Object call(String op, JSONObject request) throws Exception {
        switch (op) {
            case "send":
                return send(request);
            case "send_batch":
                return sendBatch(request);
            case "burst":
                return burst(request);
            case "request":
                return Driver.text(producer.request(Driver.message(request), request.getLongValue("timeout_ms")).getBody());
            case "load":
                load = new Load(request);
                load.start();
                return null;
            case "load_state":
                return load.state();
            case "load_stop":
                load.stop.set(true);
                load.done.await();
                return load.state();
            case "load_acked":
                return new JSONArray(new ArrayList<Object>(load.acked.get(request.getIntValue("queue_id"))));
            case "queues":
                return Driver.queues(producer.fetchPublishMessageQueues(request.getString("topic")));
            case "view":
                return Driver.received(producer.viewMessage(request.getString("topic"), request.getString("msg_id")));
            case "query":
                QueryResult found = producer.queryMessage(request.getString("topic"), request.getString("key"),
                    request.getIntValue("max"), request.getLongValue("begin"), request.getLongValue("end"));
                return Driver.received(found.getMessageList());
            case "max_offset":
                return producer.maxOffset(Driver.queue(request));
            case "min_offset":
                return producer.minOffset(Driver.queue(request));
            case "search_offset":
                return producer.searchOffset(Driver.queue(request), request.getLongValue("timestamp"));
            case "earliest":
                return producer.earliestMsgStoreTime(Driver.queue(request));
            case "create_topic":
                producer.createTopic(request.getString("key"), request.getString("topic"), request.getIntValue("queues"));
                return null;
            default:
                throw new IllegalArgumentException("a producer knows no " + op);
        }
    }

    private Object send(JSONObject request) throws Exception {
        Message message = Driver.message(request);
        Integer queueId = request.getInteger("queue_id");
        if (request.getBooleanValue("oneway")) {
            if (queueId == null) {
                producer.sendOneway(message);
            } else {
                producer.sendOneway(message, SELECT, queueId);
            }
            return null;
        }
        SendResult result = queueId == null ? producer.send(message) : producer.send(message, SELECT, queueId);
        return Driver.sent(result);
    }

    private Object sendBatch(JSONObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object one : request.getJSONArray("messages")) {
            messages.add(Driver.message((JSONObject) one));
        }
        JSONObject queue = request.getJSONObject("queue");
        SendResult result = queue == null
            ? producer.send(messages) : producer.send(messages, Driver.queue(request));
        return Driver.sent(result);
    }

    /** Asynchronous sends, so many in flight at most; one entry per message, in their order. */
    private Object burst(JSONObject request) throws Exception {
        JSONArray given = request.getJSONArray("messages");
        final Semaphore inFlight = new Semaphore(request.getIntValue("in_flight"));
        final CountDownLatch answered = new CountDownLatch(given.size());
        final Object[] results = new Object[given.size()];
        for (int i = 0; i < given.size(); i++) {
            final int number = i;
            JSONObject one = given.getJSONObject(i);
            Message message = Driver.message(one);
            Integer queueId = one.getInteger("queue_id");
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    finish(Driver.sent(result));
                }

                @Override
                public void onException(Throwable thrown) {
                    JSONObject failed = new JSONObject();
                    failed.put("error", String.valueOf(thrown.getMessage()));
                    finish(failed);
                }

                private void finish(JSONObject result) {
                    results[number] = result;
                    inFlight.release();
                    answered.countDown();
                }
            };
            inFlight.acquire();
            if (queueId == null) {
                producer.send(message, callback);
            } else {
                producer.send(message, SELECT, queueId, callback);
            }
        }
        answered.await();
        return results;
    }

    @Override
    public void shutdown() {
        if (load != null) {
            load.stop.set(true);
        }
        producer.shutdown();
    }

    static final MessageQueueSelector SELECT = new MessageQueueSelector() {
        @Override
        public MessageQueue select(List<MessageQueue> queues, Message message, Object queueId) {
            for (MessageQueue queue : queues) {
                if (queue.getQueueId() == (Integer) queueId) {
                    return queue;
                }
            }
            throw new IllegalArgumentException("no queue " + queueId + " in " + queues);
        }
    };

    /**
     * Threads that send "PREFIXQUEUE-NUMBER xxx…" to a queue of their own each, until COUNT in all are acknowledged.
     * A message that was not acknowledged with SEND_OK is not sent again: the next one has the next number.
     */
    private final class Load {
        final AtomicBoolean stop = new AtomicBoolean();
        final CountDownLatch done;
        final Map<Integer, Collection<Integer>> acked = new ConcurrentHashMap<>();
        private final Map<String, AtomicInteger> outcomes = new ConcurrentHashMap<>();
        private final AtomicInteger ok = new AtomicInteger();
        private final String topic;
        private final int threads;
        private final int firstQueue;
        private final int count;
        private final int bytes;
        private final String prefix;
        private final int paceMillis;

        Load(JSONObject request) {
            topic = request.getString("topic");
            threads = request.getIntValue("queues");
            firstQueue = request.getIntValue("first_queue");
            count = request.getIntValue("count");
            bytes = request.getIntValue("bytes");
            prefix = request.getString("prefix") == null ? "" : request.getString("prefix");
            paceMillis = request.getIntValue("pace_ms");
            done = new CountDownLatch(threads);
        }

        void start() {
            for (int i = 0; i < threads; i++) {
                final int queueId = firstQueue + i;
                final List<Integer> mine = java.util.Collections.synchronizedList(new ArrayList<>());
                acked.put(queueId, mine);
                Thread thread = new Thread(() -> run(queueId, mine), "load-" + queueId);
                thread.setDaemon(true);
                thread.start();
            }
        }

        private void run(int queueId, List<Integer> mine) {
            for (int number = 0; ok.get() < count && !stop.get(); number++) {
                StringBuilder body = new StringBuilder(bytes).append(prefix).append(queueId).append('-').append(number).append(' ');
                while (body.length() < bytes) {
                    body.append('x');
                }
                Message message = new Message(topic, body.toString().getBytes(java.nio.charset.StandardCharsets.US_ASCII));
                String outcome;
                try {
                    outcome = producer.send(message, SELECT, queueId).getSendStatus().name();
                } catch (Exception e) {
                    outcome = e.getClass().getSimpleName();
                }
                outcomes.computeIfAbsent(outcome, any -> new AtomicInteger()).incrementAndGet();
                if (outcome.equals("SEND_OK")) {
                    mine.add(number);
                    ok.incrementAndGet();
                    pause(paceMillis);
                } else {
                    // Nobody there: an answer of another kind took its time already.
                    pause(outcome.endsWith("Exception") ? 50 : 5);
                }
            }
            done.countDown();
        }

        private void pause(int millis) {
            try {
                if (millis > 0) {
                    Thread.sleep(millis);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }

        JSONObject state() {
            JSONObject state = new JSONObject(true);
            state.put("ok", ok.get());
            state.put("running", done.getCount());
            state.put("outcomes", new TreeMap<>(outcomes));
            return state;
        }
    }
}
