#!/usr/bin/env python3
"""run.py TREE [KEY...] [--no-check] [--no-commit] : the renames, one commit a name, in the order of steps.py.

Each step: moves and replacements, cargo fmt, lines that became too wide, the count of wide lines, checks, commit.
A step that changes nothing (done already) is passed over. Begin with a clean tree."""
import os, re, subprocess, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import engine, steps

args = [a for a in sys.argv[1:] if not a.startswith('--')]
options = {a for a in sys.argv[1:] if a.startswith('--')}
engine.ROOT = os.path.abspath(args[0])
only = args[1:]
NAME = os.environ.get('RENAME_TARGET', 'target/rename')

def shell(command, minutes=9):
    full = f'export CARGO_TARGET_DIR={NAME}; {command}'
    return subprocess.run(['bash', '-c', full], cwd=engine.ROOT, text=True, capture_output=True)

def fail(key, what, done):
    print(f'{key}: {what} FAILED\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}')
    sys.exit(1)

TEXT = ' '.join(f'--test {t}' for t in ['calls', 'citations', 'arrows', 'width', 'sizes', 'flags'])
CHECKS = [
    ('clippy', 'cargo clippy -q --workspace --all-targets -- -D warnings'),
    ('texts', f'cargo test --release -q -p rs-tests {TEXT} --no-fail-fast'),
]
FULL = [
    ('build', 'cargo build --release --workspace'),
    ('unit', 'cargo test --release -q -p rsocket-core --lib'),
    ('rs-tests', 'cargo test --release -q -p rs-tests --test hygiene --test frames --test syscalls --test rings --no-fail-fast'),
]

def settle_width(key):
    name = 'tests/tests/width.rs'
    text = engine.read(name)
    m = re.search(r'const WIDE: usize = (\d+);', text)
    old, now = int(m.group(1)), engine.wide_count()
    if now != old:
        print(f'  {key}: WIDE {old} -> {now}' + ('  ! MORE' if now > old else ''))
        engine.write(name, text.replace(m.group(0), f'const WIDE: usize = {now};'))

def check(key, checks):
    for what, command in checks:
        began = time.time()
        done = shell(command)
        if done.returncode:
            fail(key, what, done)
        print(f'  {key}: {what} ok ({time.time() - began:.0f} s)', flush=True)

if engine.sh('git', 'status', '--porcelain'):
    sys.exit('the tree is not clean')
for key, title, body, act in steps.STEPS:
    if only and key not in only:
        continue
    engine.remember_wide()
    act()
    engine.rewrap_all()
    done = subprocess.run(['cargo', 'fmt'], cwd=engine.ROOT, text=True, capture_output=True)
    if done.returncode:
        fail(key, 'fmt', done)
    engine.rewrap_all()
    settle_width(key)
    if not engine.sh('git', 'status', '--porcelain'):
        print(f'{key}: nothing to do')
        continue
    if '--no-check' not in options:
        check(key, CHECKS + (FULL if '--full' in options else []))
    if '--no-commit' not in options:
        engine.sh('git', 'add', '-A')
        engine.sh('git', 'commit', '-q', '-m', title + '\n\n' + body)
        print(f'{key}: ' + engine.sh('git', 'log', '-1', '--oneline').strip(), flush=True)
