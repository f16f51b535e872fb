import com.alibaba.fastjson.JSONObject;
import java.util.HashSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPullConsumer, deprecated and still used: one pull at a time, offsets by hand. */
final class PullConsumers implements Driver.Handle {
    private final DefaultMQPullConsumer consumer;

    PullConsumers(JSONObject request) throws Exception {
        consumer = new DefaultMQPullConsumer(
            request.getString("group"), Driver.aclHook(request.getJSONObject("options")));
        Driver.configure(consumer, request);
        HashSet<String> topics = new HashSet<>();
        for (Object one : request.getJSONArray("subscriptions")) {
            topics.add(((JSONObject) one).getString("topic"));
        }
        consumer.setRegisterTopics(topics);
        consumer.start();
    }

    @Override
    public Object call(String op, JSONObject request) throws Exception {
        switch (op) {
            case "queues":
                return Driver.queues(consumer.fetchSubscribeMessageQueues(request.getString("topic")));
            case "balanced":
                return Driver.queues(consumer.fetchMessageQueuesInBalance(request.getString("topic")));
            case "pull_messages":
                return pull(request);
            case "offset":
                return consumer.fetchConsumeOffset(Driver.queue(request), request.getBooleanValue("from_store"));
            case "update_offset":
                consumer.updateConsumeOffset(Driver.queue(request), request.getLongValue("offset"));
                HashSet<MessageQueue> queues = new HashSet<>();
                queues.add(Driver.queue(request));
                consumer.getOffsetStore().persistAll(queues);
                return null;
            case "max_offset":
                return consumer.maxOffset(Driver.queue(request));
            case "min_offset":
                return consumer.minOffset(Driver.queue(request));
            case "search_offset":
                return consumer.searchOffset(Driver.queue(request), request.getLongValue("timestamp"));
            case "view":
                return Driver.received(consumer.viewMessage(request.getString("topic"), request.getString("msg_id")));
            case "send_back":
                consumer.sendMessageBack(
                    consumer.viewMessage(request.getString("topic"), request.getString("msg_id")),
                    request.getIntValue("delay_level"), request.getString("broker_name"));
                return null;
            default:
                throw new IllegalArgumentException("a pull consumer knows no " + op);
        }
    }

    private Object pull(JSONObject request) throws Exception {
        MessageQueue queue = Driver.queue(request);
        String expression = request.getString("expression");
        long offset = request.getLongValue("offset");
        int max = request.getIntValue("max");
        PullResult result;
        if (request.getBooleanValue("sql")) {
            result = consumer.pull(queue, MessageSelector.bySql(expression), offset, max);
        } else if (request.getBooleanValue("block")) {
            result = consumer.pullBlockIfNotFound(queue, expression, offset, max);
        } else {
            result = consumer.pull(queue, expression, offset, max);
        }
        JSONObject seen = new JSONObject(true);
        seen.put("status", result.getPullStatus().name());
        seen.put("nextBeginOffset", result.getNextBeginOffset());
        seen.put("minOffset", result.getMinOffset());
        seen.put("maxOffset", result.getMaxOffset());
        seen.put("messages", result.getMsgFoundList() == null
            ? new Object[0] : Driver.received(result.getMsgFoundList()));
        return seen;
    }

    @Override
    public void shutdown() {
        consumer.shutdown();
    }
}
