"""What people type: mqadmin, mqbroker and mqnamesrv."""
