import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * TransactionMQProducer that answers from a script.
 *
 * The script maps a message's keys to the states that it is given one after the other, the last for ever: first
 * by the local transaction, then by the checks.  "*" stands for all others; states are COMMIT, ROLLBACK, UNKNOW
 * and THROW.
 */
final class Transactions extends Producers {
    private Map<String, List<String>> script;
    private Map<String, Integer> asked;
    private List<JSONObject> checks;

    Transactions(JSONObject request) throws Exception {
        super(request, new TransactionMQProducer(
            null, request.getString("group"), Driver.aclHook(request.getJSONObject("options"))));
    }

    @Override
    void prepare(JSONObject request) {
        script = new ConcurrentHashMap<>();
        asked = new ConcurrentHashMap<>();
        checks = Collections.synchronizedList(new ArrayList<>());
        JSONObject given = request.getJSONObject("script");
        for (String key : given.keySet()) {
            script.put(key, given.getJSONArray(key).toJavaList(String.class));
        }
        ((TransactionMQProducer) producer).setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return state(next(message));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String next = next(message);
                JSONObject check = Driver.received(message);
                check.put("transactionId", message.getTransactionId());
                check.put("answer", next);
                checks.add(check);
                return state(next);
            }
        });
    }

    private String next(Message message) {
        String key = String.valueOf(message.getKeys());
        List<String> states = script.getOrDefault(key, script.get("*"));
        int time = asked.merge(key, 1, Integer::sum) - 1;
        return states.get(Math.min(time, states.size() - 1));
    }

    private static LocalTransactionState state(String name) {
        switch (name) {
            case "COMMIT":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "ROLLBACK":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "UNKNOW":
                return LocalTransactionState.UNKNOW;
            default:
                throw new IllegalStateException("as the script says: " + name);
        }
    }

    @Override
    public Object call(String op, JSONObject request) throws Exception {
        switch (op) {
            case "send_transaction":
                TransactionSendResult result = producer.sendMessageInTransaction(Driver.message(request), null);
                JSONObject sent = Driver.sent(result);
                sent.put("state", result.getLocalTransactionState().name());
                return sent;
            case "checks":
                synchronized (checks) {
                    return new JSONArray(new ArrayList<Object>(checks));
                }
            default:
                return super.call(op, request);
        }
    }
}
