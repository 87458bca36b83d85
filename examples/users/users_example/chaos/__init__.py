"""Many users are posted while workers are killed: is anybody forgotten, is anybody written to twice without a kill?"""
