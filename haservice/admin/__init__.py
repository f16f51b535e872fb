"""The commands that people type: mqadmin, mqbroker and mqnamesrv."""
