import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import com.alibaba.fastjson.util.TypeUtils;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Stock clients on a leash: one JVM, a JSON request per line on stdin, a JSON answer per line on stdout.
 *
 *     {"id": 7, "op": "send", "client": "p1", …}   →   {"id": 7, "result": …} or {"id": 7, "error": …}
 *
 * Requests run side by side, each on a thread of its own; whoever needs an order waits for the answer.  Clients
 * have names, which are their instance names, too, so that each has connections of its own.  Bodies of messages
 * travel as base64.  End of stdin ends the process.
 */
public class Driver {
    static final Map<String, Handle> clients = new ConcurrentHashMap<>();
    private static final Object toolsLock = new Object();
    private static PrintStream answers;
    private static volatile boolean ended;

    /** A client under its name. */
    interface Handle {
        Object call(String op, JSONObject request) throws Exception;

        void shutdown();
    }

    @SuppressWarnings("removal")
    public static void main(String[] args) throws Exception {
        answers = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // what RocketMQ prints goes to the log
        System.setSecurityManager(new NoExit());
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            final JSONObject request = JSON.parseObject(line);
            threads.execute(() -> answer(request));
        }
        ended = true;
        Runtime.getRuntime().halt(0);
    }

    /** The tools end their process when they do not understand their flags; this one goes on. */
    @SuppressWarnings("removal")
    private static final class NoExit extends SecurityManager {
        @Override
        public void checkExit(int status) {
            if (!ended) {
                throw new SecurityException("exit " + status);
            }
        }

        @Override
        public void checkPermission(java.security.Permission permission) {
        }

        @Override
        public void checkPermission(java.security.Permission permission, Object context) {
        }
    }

    private static void answer(JSONObject request) {
        JSONObject answer = new JSONObject(true);
        answer.put("id", request.getLongValue("id"));
        try {
            answer.put("result", run(request.getString("op"), request));
        } catch (Throwable thrown) {
            answer.put("error", error(thrown));
        }
        String text = JSON.toJSONString(answer, SerializerFeature.DisableCircularReferenceDetect,
            SerializerFeature.WriteMapNullValue);
        synchronized (answers) {
            answers.println(text);
            answers.flush();
        }
    }

    private static Object run(String op, JSONObject request) throws Exception {
        String name = request.getString("client");
        switch (op) {
            case "ping":
                return "pong";
            case "mqadmin":
                return mqadmin(request);
            case "producer":
                return started(name, new Producers(request));
            case "transactions":
                return started(name, new Transactions(request));
            case "push":
                return started(name, new PushConsumers(request));
            case "lite":
                return started(name, new LiteConsumers(request));
            case "pull":
                return started(name, new PullConsumers(request));
            default:
        }
        Handle client = clients.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no client is called " + name);
        }
        if (op.equals("shutdown")) {
            clients.remove(name);
            client.shutdown();
            return null;
        }
        return client.call(op, request);
    }

    private static Object started(String name, Handle handle) {
        if (clients.putIfAbsent(name, handle) != null) {
            handle.shutdown();
            throw new IllegalArgumentException("there is a client called " + name);
        }
        return null;
    }

    /** The stock tool in this warm JVM, one at a time; what it printed. */
    private static Object mqadmin(JSONObject request) throws Exception {
        String[] args = request.getJSONArray("args").toArray(new String[0]);
        JSONObject acl = request.getJSONObject("options");
        synchronized (toolsLock) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = System.out;
            PrintStream err = System.err;
            PrintStream both = new PrintStream(printed, true, "UTF-8");
            System.setOut(both);
            System.setErr(both);
            try {
                forgetCommands();
                MQAdminStartup.main0(args, aclHook(acl == null ? new JSONObject() : acl));
            } catch (SecurityException e) {
                both.println(e.getMessage());
            } finally {
                System.setOut(out);
                System.setErr(err);
                System.clearProperty("rocketmq.namesrv.addr");
            }
            return printed.toString("UTF-8");
        }
    }

    /** Each start of the tools adds all commands to a static list, which "help" would then print many times. */
    private static void forgetCommands() throws Exception {
        java.lang.reflect.Field commands = MQAdminStartup.class.getDeclaredField("subCommandList");
        commands.setAccessible(true);
        ((java.util.List<?>) commands.get(null)).clear();
    }

    static RPCHook aclHook(JSONObject options) {
        Object key = options.remove("accessKey");
        Object secret = options.remove("secretKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials((String) key, (String) secret));
    }

    /** Any property of the client that has a setter, by its own name. */
    static void configure(ClientConfig client, JSONObject request) throws Exception {
        client.setNamesrvAddr(request.getString("namesrv"));
        client.setInstanceName(request.getString("client"));
        // A test does not wait for half a minute to see what a client makes of a change.
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(2000);
        client.setPersistConsumerOffsetInterval(1000);
        JSONObject options = request.getJSONObject("options");
        for (Map.Entry<String, Object> option : options.entrySet()) {
            set(client, option.getKey(), option.getValue());
        }
    }

    private static void set(Object target, String property, Object value) throws Exception {
        String setter = "set" + Character.toUpperCase(property.charAt(0)) + property.substring(1);
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                try {
                    method.invoke(target, TypeUtils.castToJavaBean(value, method.getParameterTypes()[0]));
                } catch (InvocationTargetException e) {
                    throw (Exception) e.getCause();
                }
                return;
            }
        }
        throw new IllegalArgumentException(target.getClass().getSimpleName() + " has no " + setter);
    }

    private static JSONObject error(Throwable thrown) {
        JSONObject error = new JSONObject(true);
        error.put("type", thrown.getClass().getSimpleName());
        error.put("text", String.valueOf(thrown.getMessage()));
        int code = 0;
        for (Throwable t = thrown; t != null && code == 0; t = t.getCause()) {
            if (t instanceof MQBrokerException) {
                code = ((MQBrokerException) t).getResponseCode();
            } else if (t instanceof MQClientException) {
                code = Math.max(0, ((MQClientException) t).getResponseCode());
            }
        }
        error.put("code", code);
        thrown.printStackTrace();
        return error;
    }

    // What more than one kind of client needs.

    static Message message(JSONObject given) {
        Message message = new Message();
        message.setTopic(given.getString("topic"));
        message.setBody(bytes(given.getString("body")));
        if (given.getString("tag") != null) {
            message.setTags(given.getString("tag"));
        }
        if (given.getString("keys") != null) {
            message.setKeys(given.getString("keys"));
        }
        if (given.getIntValue("delay_level") > 0) {
            message.setDelayTimeLevel(given.getIntValue("delay_level"));
        }
        message.setFlag(given.getIntValue("flag"));
        JSONObject properties = given.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        if (given.containsKey("wait")) {
            message.setWaitStoreMsgOK(given.getBooleanValue("wait"));
        }
        return message;
    }

    static byte[] bytes(String base64) {
        return base64 == null ? null : Base64.getDecoder().decode(base64);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    static JSONObject sent(SendResult result) {
        JSONObject sent = new JSONObject(true);
        sent.put("status", result.getSendStatus().name());
        sent.put("msgId", result.getMsgId());
        sent.put("offsetMsgId", result.getOffsetMsgId());
        sent.put("transactionId", result.getTransactionId());
        sent.put("queueOffset", result.getQueueOffset());
        if (result.getMessageQueue() != null) {
            sent.put("topic", result.getMessageQueue().getTopic());
            sent.put("brokerName", result.getMessageQueue().getBrokerName());
            sent.put("queueId", result.getMessageQueue().getQueueId());
        }
        return sent;
    }

    static JSONObject received(MessageExt message) {
        JSONObject seen = new JSONObject(true);
        seen.put("topic", message.getTopic());
        seen.put("body", text(message.getBody()));
        seen.put("tags", message.getTags());
        seen.put("keys", message.getKeys());
        seen.put("msgId", message.getMsgId());
        seen.put("brokerName", message.getBrokerName());
        seen.put("queueId", message.getQueueId());
        seen.put("queueOffset", message.getQueueOffset());
        seen.put("commitLogOffset", message.getCommitLogOffset());
        seen.put("reconsumeTimes", message.getReconsumeTimes());
        seen.put("bornTimestamp", message.getBornTimestamp());
        seen.put("storeTimestamp", message.getStoreTimestamp());
        seen.put("receivedTimestamp", System.currentTimeMillis());
        seen.put("bornHost", String.valueOf(message.getBornHostString()));
        seen.put("storeHost", host(message));
        seen.put("sysFlag", message.getSysFlag());
        seen.put("flag", message.getFlag());
        seen.put("properties", new JSONObject(new java.util.TreeMap<String, Object>(message.getProperties())));
        return seen;
    }

    private static String host(MessageExt message) {
        java.net.InetSocketAddress host = (java.net.InetSocketAddress) message.getStoreHost();
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    static JSONObject queue(MessageQueue queue) {
        JSONObject seen = new JSONObject(true);
        seen.put("topic", queue.getTopic());
        seen.put("brokerName", queue.getBrokerName());
        seen.put("queueId", queue.getQueueId());
        return seen;
    }

    static MessageQueue queue(JSONObject given) {
        JSONObject queue = given.getJSONObject("queue");
        return new MessageQueue(
            queue.getString("topic"), queue.getString("brokerName"), queue.getIntValue("queueId"));
    }

    static JSONArray queues(Iterable<MessageQueue> queues) {
        java.util.List<MessageQueue> sorted = new java.util.ArrayList<>();
        queues.forEach(sorted::add);
        java.util.Collections.sort(sorted);
        JSONArray seen = new JSONArray();
        sorted.forEach(one -> seen.add(queue(one)));
        return seen;
    }

    static JSONArray received(Iterable<MessageExt> messages) {
        JSONArray seen = new JSONArray();
        messages.forEach(one -> seen.add(received(one)));
        return seen;
    }
}
