import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultLitePullConsumer: subscribes, or is assigned queues, and polls. */
final class LiteConsumers implements Driver.Handle {
    private final DefaultLitePullConsumer consumer;

    LiteConsumers(JSONObject request) throws Exception {
        consumer = new DefaultLitePullConsumer(
            request.getString("group"), Driver.aclHook(request.getJSONObject("options")));
        Driver.configure(consumer, request);
        for (Object one : request.getJSONArray("subscriptions")) {
            JSONObject given = (JSONObject) one;
            if (given.getBooleanValue("sql")) {
                consumer.subscribe(given.getString("topic"), MessageSelector.bySql(given.getString("expression")));
            } else {
                consumer.subscribe(given.getString("topic"), given.getString("expression"));
            }
        }
        consumer.start();
    }

    @Override
    public Object call(String op, JSONObject request) throws Exception {
        switch (op) {
            case "poll":
                return Driver.received(consumer.poll(request.getLongValue("timeout_ms")));
            case "commit":
                consumer.commitSync();
                return null;
            case "committed":
                return consumer.committed(Driver.queue(request));
            case "queues":
                return Driver.queues(consumer.fetchMessageQueues(request.getString("topic")));
            case "assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (Object one : request.getJSONArray("queues")) {
                    JSONObject given = new JSONObject();
                    given.put("queue", one);
                    queues.add(Driver.queue(given));
                }
                consumer.assign(queues);
                return null;
            case "seek":
                consumer.seek(Driver.queue(request), request.getLongValue("offset"));
                return null;
            case "seek_to_begin":
                consumer.seekToBegin(Driver.queue(request));
                return null;
            case "seek_to_end":
                consumer.seekToEnd(Driver.queue(request));
                return null;
            case "offset_for_timestamp":
                return consumer.offsetForTimestamp(Driver.queue(request), request.getLongValue("timestamp"));
            default:
                throw new IllegalArgumentException("a lite pull consumer knows no " + op);
        }
    }

    @Override
    public void shutdown() {
        consumer.shutdown();
    }
}
