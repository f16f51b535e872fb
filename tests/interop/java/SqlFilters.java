import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * RocketMQ's own filters, asked in bulk: one JSON object per line in, one answer per line out.
 *
 *   {"expression": "a > 1", "properties": {"a": "2"}}   ->  "true" "false" "null" "fault" or "refused"
 *   {"bloom": "group#topic", "rate": 20, "consumers": 32}  ->  [bit count, position, position ...]
 */
public class SqlFilters {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            out.println(asked.containsKey("bloom") ? bloom(asked) : judge(asked));
        }
        out.flush();
    }

    private static String judge(JSONObject asked) {
        Map<String, String> properties = new HashMap<>();
        asked.getJSONObject("properties").forEach((name, value) -> properties.put(name, (String) value));
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(asked.getString("expression"));
        } catch (Exception refused) {
            return "refused";
        }
        try {
            return String.valueOf(compiled.evaluate(new MessageEvaluationContext(properties)));
        } catch (Exception fault) {
            return "fault";
        }
    }

    private static String bloom(JSONObject asked) {
        BloomFilter filter = BloomFilter.createByFn(asked.getIntValue("rate"), asked.getIntValue("consumers"));
        StringBuilder line = new StringBuilder("[" + filter.getM());
        for (int position : filter.generate(asked.getString("bloom")).getBitPos()) {
            line.append(", ").append(position);
        }
        return line.append("]").toString();
    }
}
