"""The imperative shell: runs that read configurations and write folders."""
