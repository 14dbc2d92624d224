# run: python {name} in.pdb
import sys

from openmm import LangevinMiddleIntegrator, Platform
from openmm.app import ForceField, PDBFile, Simulation

pdb = PDBFile(sys.argv[1])
system = ForceField("amber14-all.xml").createSystem(pdb.topology)
platform = Platform.getPlatformByName("CUDA")
properties = {"DeviceIndex": "0", "Precision": "mixed"}
simulation = Simulation(
    pdb.topology, system, LangevinMiddleIntegrator(300, 1, 0.002), platform, properties
)
simulation.minimizeEnergy()
