# run: python {name} --device cuda:0
from parts import model
from parts.more import helper

model.build()
helper()
