"""Attacks on runs and files: crashes, signals, hostile files, bad environments, dying processes.

``python -m tests.attacks --minutes 10`` (or ``make soak``) goes on for as long as you like;
``tests/attacks/test_attacks.py`` has a share of it for the suite. An attack is a numbered list of
cases, and a case depends only on the attack's name, the seed and the number, so that every failure
can be had again.

attack.py         what an attack is, and what becomes of a case
forked.py         a command in a process of its own, without the seconds that imports take
crash.py          kills its own process at the n-th change to files below a folder
programs.py       the runs that are attacked: small ones of every kind
whole.py          whether a run that was attacked equals one that was not
crash_points.py   kill -9 before, in the middle of, and after each call
signals.py        SIGKILL, SIGTERM, SIGINT, SIGHUP at random moments
commands.py       anything as a command of discorl, and whether it ended as one should
mutations.py      what can be done to bytes and to JSON
archives.py       what can be done to .npz files, with pickles that tell on whoever loads them
trees.py          what can be done to checkpoints, sealed again afterwards
bombs.py          files that are small, and grow
targets.py        kinds of files, and everything of ours that reads them
fuzz.py           many files, one after the other, under watch
corpus.py         files that failed once, read again
faults.py         what environments can do wrong
environments.py   environments that do it
ranks.py          two processes for one run, of which one dies or stops
tally.py          counts
"""
