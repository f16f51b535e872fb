"""The commands of mqadmin: a package for each family."""
