"""mqconsole: brokers, topics and messages in a browser, for operators.  Needs the extra `console`."""
