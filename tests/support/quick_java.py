"""Flags of a Java program that runs once or twice: compiling it well, or with threads of its own, costs more than
it gains.  It starts quickly, takes little, and one of two cores at most.
"""

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
QUICK_JAVA_OPTIONS = " ".join(QUICK_JAVA)
