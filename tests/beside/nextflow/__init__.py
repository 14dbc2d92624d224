"""A stand-in for Nextflow's local executor: no registry here has Nextflow itself."""
