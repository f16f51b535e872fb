"""Commands about the coordinator of a broker name: etcd or ZooKeeper."""
