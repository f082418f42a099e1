"""The programs: bootstrap job, release job, the first process of a pod without Ray, and the engine's front.

Each puts the other rooms together for one place where our code is started.  Nothing imports a program.
"""
