"""What the steps of steps.py are made of: files, segments of a source, words in all spellings, wraps."""
import os, re, subprocess, sys

WIDTH = 100
ROOT = '.'

def sh(*cmd, check=True, **kw):
    if cmd[:2] != ('git', 'ls-files'):
        LISTED.clear()
    done = subprocess.run(cmd, cwd=ROOT, text=True, capture_output=True, **kw)
    if check and done.returncode:
        sys.exit(f"{cmd}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout

LISTED = []

def files(*endings):
    if not LISTED:
        names = sh('git', 'ls-files', '-z').split('\0')
        LISTED.extend(n for n in names if n and os.path.isfile(os.path.join(ROOT, n)))
    return [n for n in LISTED if not endings or n.endswith(endings)]

def read(name):
    with open(os.path.join(ROOT, name), 'rb') as f:
        data = f.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None

def write(name, text):
    with open(os.path.join(ROOT, name), 'wb') as f:
        f.write(text.encode())

# ---- segments

RUST = re.compile(r'''
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>\bb?r(?P<h>\#*)".*?"(?P=h))
  | (?P<string>b?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\.[^']*|[^'\\\n])')
''', re.S | re.X)

def rust_segments(text):
    at = 0
    for m in RUST.finditer(text):
        if m.start() > at:
            yield 'code', text[at:m.start()]
        kind = 'comment' if m.group('comment') else 'string'
        yield kind, m.group(0)
        at = m.end()
    if at < len(text):
        yield 'code', text[at:]

# Where the word of a text is a name of the code: in back quotes, in an intra-doc link, in a path.
QUOTED = re.compile(r'```.*?```|`[^`\n]*(?:\n[^`\n]*)?`', re.S)

def prose_segments(text):
    """Of comments and pages: ('name', …) inside back quotes, ('prose', …) outside, ('figure', …) fenced."""
    at = 0
    for m in QUOTED.finditer(text):
        if m.start() > at:
            yield 'prose', text[at:m.start()]
        fence = m.group(0).startswith('```')
        yield 'figure' if fence else 'name', m.group(0)
        at = m.end()
    if at < len(text):
        yield 'prose', text[at:]

def on_text(name, text, act):
    """act(kind, part) -> part, with kind one of code string name prose figure other."""
    out = []
    if name.endswith('.rs'):
        # Neighbouring comments are one text: a quote may go over a line's end.
        pending = []
        def flush():
            if pending:
                joined = ''.join(pending)
                out.extend(act(k, p) for k, p in prose_segments(joined))
                pending.clear()
        for kind, part in rust_segments(text):
            if kind == 'comment':
                pending.append(part)
            elif pending and kind == 'code' and not part.strip():
                pending.append(part)
            else:
                flush()
                out.append(act(kind, part))
        flush()
        return ''.join(out)
    if name.endswith('.md'):
        return ''.join(act(k, p) for k, p in prose_segments(text))
    return act('other', text)

# ---- words

def camel(snake): return ''.join(w.capitalize() for w in snake.split('_'))

def plural(w):
    if w.endswith('y') and w[-2] not in 'aeiou': return w[:-1] + 'ies'
    if w.endswith(('s', 'x', 'ch', 'sh')): return w + 'es'
    return w + 's'

class Word:
    """One name in all its spellings. prose: what it is outside of names."""
    def __init__(self, old, new, prose=None, plurals=None):
        self.pairs = [(old, new), (plurals[0] if plurals else plural(old), plurals[1] if plurals else plural(new))]
        self.prose = [prose or new.replace('_', ' ')]
        self.prose.append(plurals[2] if plurals and len(plurals) > 2 else plural(self.prose[0]))
        self.anywhere = re.compile('|'.join(o for o, _ in self.pairs), re.I)
        self.names = []
        self.texts = []
        for (o, n), p in list(zip(self.pairs, self.prose))[::-1]:
            self.names += [(re.compile(rf'(?<![A-Za-z]){o}(?![a-z])'), n),
                           (re.compile(rf'(?<![A-Z]){camel(o)}(?![a-z])'), camel(n)),
                           (re.compile(rf'(?<![A-Za-z]){o.upper()}(?![A-Z])'), n.upper())]
            # In prose: as a path or part of a longer name it is a name still.
            self.texts += [(re.compile(rf'(?<=[:/_\[]){o}(?![a-z])|(?<![A-Za-z]){o}(?=_|\.rs|::|/[a-z{{]|\])'), n),
                           (re.compile(rf'(?<![A-Za-z_])\b{o.upper()}(?![A-Z])'), n.upper()),
                           (re.compile(rf'\b{o.upper()}_'), n.upper() + '_'),
                           (re.compile(rf'(?<=[a-z\[`]){camel(o)}(?![a-z])|(?<![A-Z]){camel(o)}(?=[A-Z:\]`])'), camel(n)),
                           (re.compile(rf'(?<![A-Za-z]){o}(?![a-z_])'), p),
                           (re.compile(rf'(?<![A-Za-z]){o.capitalize()}(?![a-z_])'), p[0].upper() + p[1:])]

    def name(self, text):
        for pattern, new in self.names:
            text = pattern.sub(new, text)
        return text

    def text(self, text):
        for pattern, new in self.texts:
            text = pattern.sub(new, text)
        return text

def column_keeping(change, line):
    """Changes a line of a figure: the next run of two blanks or more takes up the difference."""
    pieces = re.split(r'( {2,})', line)
    debt = 0
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            new = change(piece)
            debt += len(new) - len(piece)
            pieces[i] = new
        elif debt:
            # a leading indent is left alone
            if i == 1 and not pieces[0]:
                continue
            width = max(1 if i < len(pieces) - 2 else 2, len(piece) - debt)
            width = max(width, 2) if len(piece) - debt < 2 else width
            debt -= len(piece) - width
            pieces[i] = ' ' * width
    return ''.join(pieces)

def figure(change, text):
    return '\n'.join(column_keeping(change, line) for line in text.split('\n'))

def apply(word, names=None, scope=('code', 'name', 'prose', 'figure'), protect=(), code=None):
    """Replaces a word in the files `names`. protect: patterns whose matches stay as they are."""
    guard = re.compile('|'.join(f'(?:{p})' for p in protect)) if protect else None
    def kept(change, part):
        if not guard:
            return change(part)
        out, at = [], 0
        for m in guard.finditer(part):
            out += [change(part[at:m.start()]) if m.start() > at else '', m.group(0)]
            at = m.end()
        out.append(change(part[at:]))
        return ''.join(out)
    def act(kind, part):
        if kind not in scope:
            return part
        if kind == 'code' and code:
            return kept(code, part)
        if kind in ('code', 'name', 'string', 'other'):
            return kept(word.name, part)
        if kind == 'figure':
            return figure(lambda p: kept(word.text, p), part)
        return kept(word.text, part)
    changed = []
    for name in names if names is not None else files('.rs', '.md'):
        text = read(name)
        if text is None or not word.anywhere.search(text):
            continue
        new = on_text(name, text, act)
        if new != text:
            write(name, new)
            changed.append(name)
    return changed

def regex(pattern, new, names, flags=0, must=False):
    p, hits = re.compile(pattern, flags), 0
    for name in names:
        text = read(name)
        if text is None:
            continue
        out, n = p.subn(new, text)
        if n:
            write(name, out)
            hits += n
    if must and not hits:
        print(f'  ! nothing matched {pattern!r}')
    return hits

def grep(pattern, *endings):
    p = re.compile(pattern)
    return [n for n in files(*endings) if p.search(read(n) or '')]

# ---- moves

def move(old, new, under=('rsocket-', 'rspreload', 'rsrun', 'rsstat', 'fuzz', 'tests/tests')):
    """Renames every file and directory that has the word in its name."""
    pattern = re.compile(rf'(?<![A-Za-z]){old}(?![a-z])')
    for _ in range(4):
        moved = False
        for name in files():
            if not name.startswith(under):
                continue
            parts = name.split('/')
            for i, part in enumerate(parts):
                want = pattern.sub(new, part)
                if want != part:
                    a, b = '/'.join(parts[:i + 1]), '/'.join(parts[:i] + [want])
                    if os.path.exists(os.path.join(ROOT, b)) and os.path.isdir(os.path.join(ROOT, a)):
                        for inner in [n for n in files() if n.startswith(a + '/')]:
                            to = b + inner[len(a):]
                            os.makedirs(os.path.dirname(os.path.join(ROOT, to)), exist_ok=True)
                            sh('git', 'mv', inner, to)
                    else:
                        if os.path.exists(os.path.join(ROOT, b)):
                            sys.exit(f'{b} is there already')
                        sh('git', 'mv', a, b)
                    moved = True
                    break
            if moved:
                break
        if not moved:
            return

def move_path(pattern, repl):
    """git mv of whole paths by a pattern."""
    p = re.compile(pattern)
    for name in files():
        want = p.sub(repl, name)
        if want != name:
            if os.path.exists(os.path.join(ROOT, want)):
                sys.exit(f'{want} is there already')
            os.makedirs(os.path.dirname(os.path.join(ROOT, want)), exist_ok=True)
            sh('git', 'mv', name, want)

# ---- mangled names of data-path.ld and hygiene.rs

def mangled(pairs, names=None):
    """`5relay` -> `6bridge`: a name of the linker's script has its length before it."""
    for name in names or (files('.ld') + [n for n in files('hygiene.rs')]):
        text = read(name)
        for old, new in pairs:
            text = re.sub(rf'(?<!\d){len(old)}{old}(?![a-z_A-Z])', f'{len(new)}{new}', text)
            text = re.sub(rf'(?<!\d){len(old)}{old}(?=\d)', f'{len(new)}{new}', text)
            text = re.sub(rf'(?<![a-zA-Z0-9_]){old}(?=\d)', new, text) if name.endswith('.ld') else text
        write(name, text)

# ---- articles and wraps

def articles(*nouns):
    """a/an before the new words."""
    for noun in nouns:
        vowel = noun[0] in 'aeio'
        gap = r'([ ]|\n\s*(?:///|//!|//|)\s*)'
        wrong = r'[Aa]' if vowel else r'[Aa]n'
        p = re.compile(rf'(?<![A-Za-z`]){"(" + wrong + ")"}{gap}(?=[`\[]?{noun}\b)')
        for name in files('.rs', '.md'):
            text = read(name)
            new = p.sub(lambda m: (m.group(1)[0] + ('n' if vowel else '')) + m.group(2), text)
            if new != text:
                write(name, new)

PREFIX = re.compile(r'^(\s*(?://[/!]?|#|\*)?\s?(?:(?:[-*]|\d+\.) )?\s*)')

BEFORE = set()

def remember_wide():
    """Lines that are too wide before a step are not its business."""
    BEFORE.clear()
    for name in files('.rs', '.md'):
        BEFORE.update(l for l in read(name).split('\n') if len(l) > WIDTH)

def rewrap_all():
    left = []
    for name in files('.rs', '.md'):
        text = read(name)
        if any(len(l) > WIDTH for l in text.split('\n')):
            new = rewrap(name, text)
            if new != text:
                write(name, new)
            for i, l in enumerate(new.split('\n')):
                if len(l) > WIDTH and (name.endswith('.rs') or not l.startswith('|')):
                    left.append(f'{name}:{i + 1}')
    return left

def comment_prefix(line, rs):
    if rs:
        m = re.match(r'^(\s*//[/!]? ?)(.*)$', line)
        return (m.group(1), m.group(2)) if m else None
    if line.startswith('|') or line.startswith('#') or line.startswith('    '):
        return None
    return '', line

def hanging(rest):
    m = re.match(r'^( *)((?:[-*]|\d+\.) +)?', rest)
    return m.group(1) + ' ' * len(m.group(2) or ''), bool(m.group(2))

def rewrap(name, text):
    rs, lines, fence, i = name.endswith('.rs'), text.split('\n'), False, 0
    while i < len(lines):
        line = lines[i]
        if '```' in line:
            fence = not fence
        if len(line) <= WIDTH or fence or line in BEFORE or \
                not rs and line.count('`') == 2 and line.strip().startswith('`') and line.strip().endswith(('`', '`.')):
            i += 1
            continue
        got = comment_prefix(line, rs)
        if not got or rs and got[1].lstrip().startswith('|'):
            i += 1
            continue
        prefix, rest = got
        cut = line.rfind(' ', len(prefix) + len(hanging(rest)[0]) + 1, WIDTH + 1)
        # a `…` with a blank in it stays whole if it can
        if cut <= 0:
            i += 1
            continue
        head, over = line[:cut].rstrip(), line[cut + 1:].strip()
        lines[i] = head
        hang = hanging(rest)[0]
        nxt = comment_prefix(lines[i + 1], rs) if i + 1 < len(lines) else None
        joins = nxt and nxt[0].rstrip() == prefix.rstrip() and nxt[1].strip() and '```' not in nxt[1] \
            and not re.match(r'^\s*([-*|#]|\d+\.) ', nxt[1]) and not nxt[1].startswith('#') \
            and hanging(nxt[1])[0] == hang
        if joins:
            lines[i + 1] = f'{prefix}{hang}{over} {nxt[1].lstrip()}'
        else:
            lines.insert(i + 1, f'{prefix}{hang}{over}')
        i += 1
    return '\n'.join(lines)

def wide_count():
    n = 0
    for dirpath, dirs, names in os.walk(ROOT):
        dirs[:] = [d for d in dirs if d not in ('target', '.git', '__pycache__')]
        for f in names:
            if f.endswith('.rs'):
                with open(os.path.join(dirpath, f), encoding='utf-8') as h:
                    n += sum(len(l.rstrip('\n')) > WIDTH for l in h)
    return n

# ---- glossary

def glossary(term, where=None):
    """The line of a term now says that the code has the word, too; `where` is replaced by moves alone."""
    for name in files('docs/glossary.md'):
        text = read(name)
        out = []
        for line in text.split('\n'):
            cells = line.split('|')
            if len(cells) > 4 and cells[1].strip() == term:
                cells[2] = f' {term} '
                line = '|'.join(cells)
            out.append(line)
        write(name, '\n'.join(out))

def glossary_word(term, word):
    for name in files('docs/glossary.md'):
        write(name, re.sub(rf'(\| {re.escape(term)} \| ){re.escape(term)} \|', rf'\1{word} |', read(name)))

# ---- modules

CODE_DIRS = ('rsocket-', 'rspreload', 'fuzz/', 'tests/tests/')

def module(old, new, glossaries=()):
    """A module and its tests get another name, wherever in the tree they are; paths to it follow."""
    move_path(rf'^((?:rsocket-\w+|rspreload)/(?:src|tests)/(?:.*/)?){old}((?:_tests)?\.rs)$', rf'\1{new}\2')
    move_path(rf'^((?:rsocket-\w+|rspreload)/src/(?:.*/)?){old}/', rf'\1{new}/')
    use = re.compile(r'\buse [^;]+;')
    leaf = re.compile(rf'(?<![\w.]){old}(?=[,;}}\s]|::)')
    for name in files('.rs'):
        if not name.startswith(CODE_DIRS):
            continue
        text = text0 = read(name)
        if old not in text:
            continue
        def act(kind, part):
            if kind == 'code':
                part = use.sub(lambda m: leaf.sub(new, m.group(0)), part)
                part = re.sub(rf'\bmod {old}(?=;)', f'mod {new}', part)
                part = re.sub(rf'\bmod {old}_tests;', f'mod {new}_tests;', part)
            if kind == 'string' and not name.startswith('tests/tests/'):
                return part
            if kind == 'string':
                part = re.sub(rf'^"{old}"$', f'"{new}"', part)
            return re.sub(rf'(?<![\w.]){old}::(?=[a-zA-Z_{{])', f'{new}::', part)
        text = on_text(name, text, act)
        text = re.sub(rf'\[`{old}`\]', f'[`{new}`]', text)
        text = re.sub(rf'`((?:\w+::)+){old}`', rf'`\1{new}`', text)
        text = re.sub(rf'(?<=[`/]){old}((?:_tests)?\.rs)', rf'{new}\1', text)
        if text != text0:
            write(name, text)
    for name in files('.md'):
        text = text0 = read(name)
        text = re.sub(rf'(?<=[`/]){old}((?:_tests)?\.rs\b)', rf'{new}\1', text)
        text = re.sub(rf'(?<=`){old}/', f'{new}/', text)
        text = re.sub(rf'(?<=/){old}/(?=`|[a-z_]+\.rs)', f'{new}/', text)
        text = re.sub(rf'(?<![\w.]){old}::(?=[a-zA-Z_])', f'{new}::', text)
        if text != text0:
            write(name, text)
    mangled([(old, new)])
    for term in glossaries:
        glossary(term)

def in_code(pairs, names=None, kinds=('code', 'name')):
    """Whole identifiers, in code and in names within comments."""
    table = dict(pairs)
    if not table:
        return
    p = re.compile(r'(?<![\w])(' + '|'.join(sorted(table, key=len, reverse=True)) + r')(?![\w])')
    for name in names or [n for n in files('.rs', '.md') if n.startswith(CODE_DIRS + ('docs/', 'ARCH'))]:
        text = read(name)
        if not p.search(text):
            continue
        def act(kind, part):
            if kind == 'figure':
                return figure(lambda q: p.sub(lambda m: table[m.group(1)], q), part)
            return p.sub(lambda m: table[m.group(1)], part) if kind in kinds else part
        new = on_text(name, text, act)
        if new != text:
            write(name, new)

def identifiers(pattern, *endings):
    p, found = re.compile(rf'(?<!\w)\w*{pattern}\w*(?!\w)'), set()
    for name in files(*(endings or ('.rs',))):
        if name.startswith(CODE_DIRS):
            found.update(p.findall(read(name)))
    return found
