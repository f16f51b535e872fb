"""What monitoring asks of a node over HTTP: metrics for Prometheus, health for load balancers."""
