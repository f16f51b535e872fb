import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * DefaultMQPushConsumer that remembers what it was given and fails as it is told.
 *
 * A message (known by its body) fails the first "fail_times" times, if its body begins with "fail_prefix"; how
 * is "fail_how": LATER, THROW or NULL, and for an orderly one SUSPEND.  "delay_level" is what a failing
 * concurrent one asks for (0 = the broker decides, -1 = no retry).  "reply" answers requests with the body behind
 * a prefix.  What was received counts each delivery, failed ones included.
 */
final class PushConsumers implements Driver.Handle {
    /** Of all consumers together: one order for what several members of a group were given. */
    private static final AtomicLong deliveries = new AtomicLong();

    private final DefaultMQPushConsumer consumer;
    private final DefaultMQProducer replies;
    private final List<MessageExt> received = new ArrayList<>();
    private final List<Long> times = new ArrayList<>();
    private final List<Object[]> briefs = new ArrayList<>();
    private final boolean isBrief;
    private final Map<String, Integer> failures = new ConcurrentHashMap<>();
    private final int failTimes;
    private final String failPrefix;
    private final String failHow;
    private final int delayLevel;
    private final String reply;
    private volatile long pauseMs;

    PushConsumers(JSONObject request) throws Exception {
        failTimes = request.getIntValue("fail_times");
        failPrefix = request.getString("fail_prefix");
        failHow = request.getString("fail_how");
        delayLevel = request.getIntValue("delay_level");
        reply = request.getString("reply");
        pauseMs = request.getLongValue("pause_ms");
        isBrief = request.getBooleanValue("brief");
        JSONObject options = request.getJSONObject("options");
        replies = reply == null ? null : new DefaultMQProducer(
            request.getString("group") + "-replies", Driver.aclHook((JSONObject) options.clone()));
        consumer = new DefaultMQPushConsumer(
            request.getString("group"), Driver.aclHook(options), new AllocateMessageQueueAveragely());
        Driver.configure(consumer, request);
        for (Object one : request.getJSONArray("subscriptions")) {
            subscribe((JSONObject) one);
        }
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) this::consumeOrderly);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) this::consume);
        }
        if (replies != null) {
            replies.setNamesrvAddr(request.getString("namesrv"));
            replies.setInstanceName(request.getString("client"));
            replies.start();
        }
        consumer.start();
    }

    private void subscribe(JSONObject given) throws Exception {
        if (given.getBooleanValue("sql")) {
            consumer.subscribe(given.getString("topic"), MessageSelector.bySql(given.getString("expression")));
        } else {
            consumer.subscribe(given.getString("topic"), given.getString("expression"));
        }
    }

    private ConsumeConcurrentlyStatus consume(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        if (isFailing(messages)) {
            context.setDelayLevelWhenNextConsume(delayLevel);
            return failHow.equals("NULL") ? null : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private ConsumeOrderlyStatus consumeOrderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
        if (isFailing(messages)) {
            return failHow.equals("NULL") ? null : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
        return ConsumeOrderlyStatus.SUCCESS;
    }

    private boolean isFailing(List<MessageExt> messages) {
        synchronized (received) {
            for (MessageExt message : messages) {
                if (isBrief) {
                    briefs.add(brief(message));
                    continue;
                }
                received.add(message);
                times.add(System.currentTimeMillis());
            }
        }
        if (pauseMs > 0) {
            pause();
        }
        boolean failing = false;
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            if (failTimes > 0 && body.startsWith(failPrefix)) {
                failing |= failures.merge(body, 1, Integer::sum) <= failTimes;
            }
            if (reply != null) {
                answer(message, body);
            }
        }
        if (failing && failHow.equals("THROW")) {
            throw new IllegalStateException("as the test says");
        }
        return failing;
    }

    private void pause() {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void answer(MessageExt message, String body) {
        try {
            byte[] text = (reply + body).getBytes(StandardCharsets.UTF_8);
            replies.send(MessageUtil.createReplyMessage(message, text));
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public Object call(String op, JSONObject request) throws Exception {
        switch (op) {
            case "received":
                return snapshot(request.getIntValue("since"));
            case "take_briefs":
                return takeBriefs();
            case "count":
                synchronized (received) {
                    return received.size();
                }
            case "queues":
                return Driver.queues(
                    consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
            case "subscribe":
                subscribe(request);
                return null;
            case "unsubscribe":
                consumer.unsubscribe(request.getString("topic"));
                return null;
            case "suspend":
                consumer.suspend();
                return null;
            case "resume":
                consumer.resume();
                return null;
            case "pause_ms":
                pauseMs = request.getLongValue("ms");
                return null;
            default:
                throw new IllegalArgumentException("a push consumer knows no " + op);
        }
    }

    private JSONArray snapshot(int since) {
        List<MessageExt> messages;
        List<Long> at;
        synchronized (received) {
            messages = new ArrayList<>(received.subList(Math.min(since, received.size()), received.size()));
            at = new ArrayList<>(times.subList(Math.min(since, times.size()), times.size()));
        }
        JSONArray seen = new JSONArray(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            JSONObject one = Driver.received(messages.get(i));
            one.put("receivedTimestamp", at.get(i));
            seen.add(one);
        }
        return seen;
    }

    /** What is kept of a delivery when there are very many. */
    private static Object[] brief(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        String head = body.substring(0, (body + " ").indexOf(' '));
        return new Object[] {
            message.getQueueId(), message.getQueueOffset(), deliveries.incrementAndGet(), head};
    }

    private List<Object[]> takeBriefs() {
        synchronized (received) {
            List<Object[]> taken = new ArrayList<>(briefs);
            briefs.clear();
            return taken;
        }
    }

    @Override
    public void shutdown() {
        consumer.shutdown();
        if (replies != null) {
            replies.shutdown();
        }
    }
}
