import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/**
 * One OpenSearch node on the loopback, from its jars: java -cp 'jars/*' SearchNode.java HOME HTTP_PORT TRANSPORT_PORT.
 *
 * <p>The distribution's own start loads the HTTP module from a directory by a class loader that Maven Central does not
 * have. A node that is given the module's class needs neither.
 */
public final class SearchNode extends Node {
    private SearchNode(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "tests"),
            List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] arguments) throws Exception {
        Settings.Builder settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("cluster.name", "todoku-tests")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("discovery.type", "single-node")
            .put("node.processors", 2)
            .put("cluster.routing.allocation.disk.threshold_enabled", false);
        new SearchNode(settings.build()).start();
        Thread.currentThread().join();
    }
}
