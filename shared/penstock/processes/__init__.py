"""What the processes of a site and of the coordinator share: supervision, certificates, checks."""
