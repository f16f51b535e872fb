import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.TimeUnit;

/**
 * A stock DLedger node, a command per line on stdin, an answer per line.
 *
 * Arguments: DIRECTORY ID PEERS DATA_FILE_BYTES INDEX_FILE_BYTES [HEARTBEAT_MS [DATA_PATHS [READ_ONLY_PATHS]]]
 *
 * append BODY_BASE64     → ok INDEX TERM POS
 * get INDEX              → ok MAGIC SIZE INDEX TERM POS CHANNEL CHAIN_CRC BODY_CRC BODY_BASE64
 * ends                   → ok BEGIN_INDEX END_INDEX END_TERM COMMITTED_INDEX CURRENT_TERM
 * hold MILLISECONDS      → ok                       waits until the node leads
 * stop                   → ok                       a clean stop
 * A command that fails is answered "error REASON".
 */
public class Ledger {
    private static DLedgerServer server;

    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.group("group").selfId(args[1]).peers(args[2]);
        config.setStoreBaseDir(args[0]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(args[3]));
        config.setMappedFileSizeForEntryIndex(Integer.parseInt(args[4]));
        config.setEnableDiskForceClean(false);
        config.setDiskSpaceRatioToForceClean(0.99f);
        config.setHeartBeatTimeIntervalMs(args.length > 5 ? Integer.parseInt(args[5]) : 200);
        if (args.length > 6) {
            config.setDataStorePath(args[6]);
        }
        if (args.length > 7) {
            config.setReadOnlyDataStoreDirs(args[7]);
        }
        config.setMinVoteIntervalMs(20);
        config.setMaxVoteIntervalMs(50);
        config.setCheckPointInterval(100);
        server = new DLedgerServer(config);
        server.startup();
        System.out.println("ok up");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok" + answer(line.trim().split(" "));
            } catch (Throwable e) {
                answer = "error " + String.valueOf(e).replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }

    private static String answer(String[] word) throws Exception {
        DLedgerStore store = server.getdLedgerStore();
        switch (word[0]) {
            case "append": {
                AppendEntryRequest request = new AppendEntryRequest();
                request.setGroup("group");
                request.setRemoteId(server.getMemberState().getSelfId());
                request.setBody(Base64.getDecoder().decode(word.length > 1 ? word[1] : ""));
                AppendEntryResponse response = server.handleAppend(request).get(10, TimeUnit.SECONDS);
                if (response.getCode() != 200) {
                    throw new IllegalStateException("code " + response.getCode());
                }
                return " " + response.getIndex() + " " + response.getTerm() + " " + response.getPos();
            }
            case "get": {
                DLedgerEntry entry = store.get(Long.parseLong(word[1]));
                return " " + entry.getMagic() + " " + entry.getSize() + " " + entry.getIndex() + " "
                    + entry.getTerm() + " " + entry.getPos() + " " + entry.getChannel() + " "
                    + entry.getChainCrc() + " " + entry.getBodyCrc() + " "
                    + Base64.getEncoder().encodeToString(entry.getBody());
            }
            case "ends":
                return " " + store.getLedgerBeginIndex() + " " + store.getLedgerEndIndex() + " "
                    + store.getLedgerEndTerm() + " " + store.getCommittedIndex() + " "
                    + server.getMemberState().currTerm();
            case "hold": {
                long until = System.nanoTime() + Long.parseLong(word[1]) * 1000000L;
                while (!server.getMemberState().isLeader()) {
                    if (System.nanoTime() > until) {
                        throw new IllegalStateException("does not lead");
                    }
                    Thread.sleep(10);
                }
                return "";
            }
            case "stop":
                server.shutdown();
                return "";
            default:
                throw new IllegalArgumentException(word[0]);
        }
    }
}
