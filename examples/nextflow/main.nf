// Folds each sequence on a card of its own, whoever else uses this machine's cards.
//
//     nextflow run main.nf
//     nextflow run main.nf -profile pretend        to try it without cards
//
// Which processes are on a card says their label; what that does, nextflow.config.

params.inputs = "${projectDir}/inputs/*.fasta"

process fold {
    label 'gpu'
    publishDir 'folds'

    input:
    path fasta

    output:
    path "${fasta.baseName}.json"

    script:
    """
    fold.py ${fasta} ${fasta.baseName}.json
    """
}

workflow {
    fold(channel.fromPath(params.inputs))
}
