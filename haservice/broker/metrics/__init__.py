"""What a broker tells monitoring: facts gathered at scrape time, the samples made of them, its health."""
