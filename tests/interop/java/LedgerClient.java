import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * Stock DLedger clients, one to a thread; a command per line on stdin, an answer per line.
 *
 * Arguments: PEERS
 *
 * load THREADS           → ok                       appends bodies from now on, one after the other in each thread
 * acked                  → ok COUNT
 * halt                   → ok INDEX=BODY ...        ends it; all that was acknowledged
 * transfer FROM TO TERM  → ok CODE
 * stop                   → ok
 * A command that fails is answered "error REASON".
 */
public class LedgerClient {
    private static final int ANSWER_MS = 20000;
    private static final ConcurrentLinkedQueue<String> ACKED = new ConcurrentLinkedQueue<>();
    private static final List<Thread> THREADS = new ArrayList<>();
    private static volatile boolean halted;

    public static void main(String[] args) throws Exception {
        System.out.println("ok up");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok" + answer(args[0], line.trim().split(" "));
            } catch (Throwable e) {
                answer = "error " + String.valueOf(e).replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }

    private static String answer(String peers, String[] word) throws Exception {
        switch (word[0]) {
            case "load":
                for (int i = 0; i < Integer.parseInt(word[1]); i++) {
                    int number = i;
                    THREADS.add(new Thread(() -> append(peers, number)));
                }
                THREADS.forEach(Thread::start);
                return "";
            case "acked":
                return " " + ACKED.size();
            case "halt":
                halted = true;
                for (Thread thread : THREADS) {
                    thread.join(ANSWER_MS);
                    if (thread.isAlive()) {
                        throw new IllegalStateException("an append is not answered");
                    }
                }
                return " " + String.join(" ", ACKED);
            case "transfer": {
                DLedgerClient client = client(peers);
                try {
                    return " " + client.leadershipTransfer(word[1], word[2], Long.parseLong(word[3])).getCode();
                } finally {
                    client.shutdown();
                }
            }
            case "stop":
                return "";
            default:
                throw new IllegalArgumentException(word[0]);
        }
    }

    private static DLedgerClient client(String peers) {
        DLedgerClient client = new DLedgerClient("group", peers);
        client.startup();
        return client;
    }

    private static void append(String peers, int thread) {
        DLedgerClient client = client(peers);
        for (int i = 0; !halted; i++) {
            String body = "body-" + thread + "-" + i;
            AppendEntryResponse response = client.append(body.getBytes(StandardCharsets.UTF_8));
            if (response.getCode() == 200) {
                ACKED.add(response.getIndex() + "=" + body);
            }
        }
        client.shutdown();
    }
}
