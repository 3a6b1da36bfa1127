"""One step a name: (key, title, body, function). Order is that of worth."""
import re
from engine import *

STEPS = []
def step(key, title, body):
    def add(f):
        STEPS.append((key, title, body, f))
        return f
    return add

RS_MD = ('.rs', '.md')
def tests_rs(): return [n for n in files('.rs') if n.startswith('tests/tests/')]
def strings(word, names=None):
    apply(word, names or tests_rs(), scope=('string',))

# ---------------------------------------------------------------- 0 what is too wide already
@step('wrap', 'Wrap comments that are too wide',
'''Renames make lines longer, and a line that was too wide before hides one that has become so.''')
def wrap():
    import engine
    engine.BEFORE.clear()
    engine.BEFORE.update(l for n in files('.md') for l in read(n).split('\n') if len(l) > WIDTH)

# ---------------------------------------------------------------- 1 relay -> bridge
@step('relay', 'Call the relay a bridge',
'''The glossary and the design pages already say bridge: what carries bytes between a channel and a
queue pair. Now the room, its flags and its comments have the same word. Nothing but names changes.''')
def relay():
    regex(r'but a \*bridge\* \(`relay` in the code\) in', 'but a *bridge* in', files('.md'))
    move('relay', 'bridge')
    w = Word('relay', 'bridge')
    r = Word('relayed', 'bridged')
    names = files(*RS_MD) + [n for n in files() if n.endswith('semantics/exceptions') or n.endswith('vm/forkmode.sh')]
    apply(r, names)
    apply(w, names, scope=('code', 'name', 'prose', 'figure', 'other'))
    strings(w)
    strings(w, [n for n in files('guests_tests.rs')])
    mangled([('relay', 'bridge'), ('Relay', 'Bridge')])
    # One letter more, and a call no longer fits into a line of a long function.
    regex(r'\*place =\s+Some\(Connection::dial\(\s*bridge\.key\(\),\s*cm,\s*\(id, s\),\s*\*to,\s*shape\(s\),\s*\(claim, port, end\),?\s*\)\);',
          'let way = (claim, port, end);\n            *place = Some(Connection::dial(bridge.key(), cm, (id, s), *to, shape(s), way));', files('rdma.rs'))
    glossary('bridge')

# ---------------------------------------------------------------- 2 plain -> native
@step('plain', 'Call the room of native connections native',
'''`plain` stood for a connection that never was TCP, for TCP without the library, and for ordinary
values. The room that makes connections by rconnect and raccept is `native` now. What says whether
this process wants such connections over RDMA is `native_rdma`.''')
def plain():
    if not [n for n in files() if re.match(r'rsocket-core/src/plain(/|\.rs)', n)]:
        return
    # The bridge's own little module had the word: it gives it to the room.
    move_path(r'^(rsocket-core/src/(?:relay|bridge)/)native\.rs$', r'\1native_rdma.rs')
    core = [n for n in files('.rs') if n.startswith(('rsocket-', 'rspreload', 'fuzz', 'tests/tests'))]
    regex(r'(?<![\w])((?:relay|bridge)::)native\b', r'\1native_rdma', core)
    for name in core:
        text = read(name)
        if 'native_rdma' in text:
            text = re.sub(r'(?<![\w:])native::', 'native_rdma::', text)
        if re.search(r'(?:relay|bridge)/mod\.rs$', name):
            text = re.sub(r'\bmod native;', 'mod native_rdma;', text)
        # `use crate::bridge::{native, …}`
        text = re.sub(r'(use [\w:]*(?:relay|bridge)::\{[^}]*?)\bnative\b', r'\1native_rdma', text)
        write(name, text)
    move_path(r'^(rsocket-core/src/)plain/', r'\1native/')
    move_path(r'^(rsocket-core/src/)plain\.rs$', r'\1native.rs')
    core = [n for n in files('.rs') if n.startswith(('rsocket-', 'rspreload', 'fuzz', 'tests/tests'))]
    for name in core:
        text = read(name)
        if text is None:
            continue
        text = re.sub(r'(?<![\w])plain::', 'native::', text)
        text = re.sub(r'\b(crate|rsocket_core)::plain\b', r'\1::native', text)
        text = re.sub(r'(use (?:rsocket_core|crate)::\{[^;]*?)\bplain\b', r'\1native', text)
        text = re.sub(r'\bmod plain;', 'mod native;', text)
        text = re.sub(r'\[`plain`\]', '[`native`]', text)
        text = re.sub(r'\bplain_rdma\b', 'native_rdma', text)
        if name.startswith('tests/tests/'):
            text = re.sub(r'"plain"', '"native"', text)
        write(name, text)
    pages = files('.md')
    regex(r'`plain/', '`native/', pages)
    regex(r'\bplain/(rdma|kernel)\.rs( *)(?=-)', lambda m: f'native/{m.group(1)}.rs' + m.group(2)[1:], pages)
    regex(r'`plain::', '`native::', pages)
    regex(r'(rconnect --> )plain::connect --> ', r'\1native::connect -> ', pages)
    regex(r'\bplain::', 'native::', pages)
    regex(r'and `plain` pass', 'and `native` pass', pages)
    regex(r'policy::plain_rdma', 'policy::native_rdma', pages)
    regex(r'^(   )plain  (?= {3,}how rsockets meet)', r'\1native ', pages, re.M)
    glossary('native')

# ---------------------------------------------------------------- 3 succession -> exec_handover
@step('succession', 'Call the succession an exec hand-over',
'''What leaves connections to the next program of a process is found by the word exec. Nothing but
names changes.''')
def succession():
    move('succession', 'exec_handover')
    w = Word('succession', 'exec_handover', 'exec hand-over')
    regex(r'how rsockets meet {4,}succession {3}connections', 'how rsockets meet         exec_handover  connections', files('.md'))
    apply(w, files(*RS_MD))
    strings(w)
    glossary('exec hand-over')

# ---------------------------------------------------------------- 4 vault -> fd_stash
@step('vault', 'Call the vault an fd stash',
'''It is a socket pair in which the processes of a fork group keep the descriptors of arenas. The
glossary has called it that already. Nothing but names changes.''')
def vault():
    regex(r'fd stash \(vault\)', 'fd stash', files('.md'))
    move('vault', 'fd_stash')
    w = Word('vault', 'fd_stash', 'fd stash', plurals=('vaults', 'fd_stashes', 'fd stashes'))
    apply(w, files(*RS_MD))
    strings(w)
    glossary('fd stash')

# ---------------------------------------------------------------- 5 parcels -> fds_in_flight
@step('parcels', 'Call parcels descriptors in flight',
'''The field says that of descriptors that are on their way in SCM_RIGHTS messages. Nothing but names
changes.''')
def parcels():
    move('parcels', 'fds_in_flight')
    w = Word('parcel', 'fd_in_flight', 'fd in flight', plurals=('parcels', 'fds_in_flight', 'fds in flight'))
    apply(w, files(*RS_MD))
    strings(w)
    regex(r'\ba fd in flight', 'an fd in flight', files(*RS_MD))
    regex(r'\ba(\s+//[/!]? )fd in flight', r'an\1fd in flight', files('.rs'))
    glossary('fds in flight')

# ---------------------------------------------------------------- 6 family -> fork_group
ADDRESS_FAMILY = ('rsocket-host/', 'rsocket-wire/', 'rsocket-capi/', 'rsrun/', 'rsstat/', 'tests/', 'fuzz/')
ADDRESS_FAMILY_FILES = re.compile(
    r'(/device/|/datagram/|loopback\.rs|interfaces\.rs|bridge/setup\.rs|relay/setup\.rs|(plain|native)/rdma\.rs'
    r'|stand_in\.rs|conn/name\.rs|rspreload/src/(adopted|policy)\.rs|hooks/mod\.rs|ops/mod\.rs|ops/name\.rs'
    r'|attach/meet/|attach/trust|attach/evidence|attach/rendezvous|attach_trust|attach_handshake|live/mod\.rs)')

def group_files():
    return [n for n in files('.rs') if not n.startswith(ADDRESS_FAMILY)]

def family_code(text):
    text = re.sub(r'(?<![\w.])family::', 'fork_group::', text)
    text = re.sub(r'\b(conn|super)::family\b', r'\1::fork_group', text)
    text = re.sub(r'(use [\w:]*(?:conn|super)::\{[^;]*?)(?<![\w:])family\b(?!\s*\()', r'\1fork_group', text)
    text = re.sub(r'\bmod family\b', 'mod fork_group', text)
    text = re.sub(r'\bmod family_tests\b', 'mod fork_group_tests', text)
    text = re.sub(r'\bFamily\b', 'ForkGroup', text)
    text = re.sub(r'\bFAMILY\b', 'FORK_GROUP', text)
    text = re.sub(r'\bfamily_size\b', 'group_size', text)
    return text

@step('family', 'Call the family of processes a fork group',
'''A socket has a family, too: that of its address. The processes that share the slots are a fork
group, and one of them is the other's sibling. Nothing but names changes.''')
def family():
    move_path(r'^(rsocket-core/src/conn/)family(\.rs|/)', r'\1fork_group\2')
    move_path(r'^(rsocket-core/src/socket/)family_tests\.rs', r'\1fork_group_tests.rs')
    move_path(r'^(rsocket-core/tests/)family_holders\.rs', r'\1fork_group_holders.rs')
    for name in group_files():
        text = read(name)
        # Locals that are a fork group: of files that name the type, or get one.
        local = re.search(r'\bFamily\b|\(Some\(family\)|let Some\(family\)|family = (?:family::)?get', text)
        address = ADDRESS_FAMILY_FILES.search(name)
        def code(part):
            part = family_code(part)
            if local and not address and 'socket_with(family' not in text and 'tuple.family' not in text:
                part = re.sub(r'(?<![\w.:])family\b(?!\s*\(|::)', 'group', part)
                part = re.sub(r'\b(self|head|will)\.family\b', r'\1.group', part)
            return part
        def act(kind, part):
            if kind == 'code':
                return code(part)
            if kind == 'name':
                return family_code(part)
            if kind in ('prose', 'figure') and not address:
                return Word('family', 'fork_group', 'group' if re.search(r'conn/fork_group', name) and part.count('\n') < 4 else 'fork group').text(part) if not re.search(r'famil', part) is None else part
            return part
        guard = re.compile(r'address family|process family')
        text0 = text
        text = text.replace('process family', 'fork group').replace('address family', 'address\x00family')
        text = on_text(name, text, act).replace('address\x00family', 'address family')
        if text != text0:
            write(name, text)
    # rsocket-core's own integration tests, and whoever else takes names from it.
    for name in files('.rs'):
        if name.startswith(('rsocket-capi/', 'fuzz/', 'tests/tests/', 'rsrun/')):
            text = read(name)
            new = re.sub(r'\b(conn|rsocket_core)::family\b', r'\1::fork_group', text)
            new = re.sub(r'(use rsocket_core::conn::\{[^;]*?)(?<![\w:])family\b', r'\1fork_group', new)
            new = re.sub(r'(?<![\w.])family::', 'fork_group::', new) if new != text else new
            if new != text:
                write(name, new)
    # Pages: by what they say.
    pages = files('.md')
    regex(r'fork group \(family\)', 'fork group', pages)
    regex(r'in a family of forked processes', 'in a fork group', pages)
    regex(r'processes of a family', 'processes of a fork group', pages)
    regex(r'until the family has', 'until the fork group has', pages)
    regex(r'The family is', 'The fork group is', pages)
    regex(r"the family's memory", "the fork group's memory", pages)
    regex(r'^\*family\*, a memfd', '*fork group*, a memfd', pages, re.M)
    regex(r'; the family: `memfd', '; the fork group: `memfd', pages)
    regex(r'what the family shares', 'what the fork group shares', pages)
    regex(r'conn/family', 'conn/fork_group', pages)
    regex(r'`Family::', '`ForkGroup::', pages)
    mangled([('family', 'fork_group'), ('FAMILY', 'FORK_GROUP')])
    glossary('fork group')

# ---------------------------------------------------------------- 6b relative -> sibling
@step('relative', 'Call the other processes of a fork group siblings',
'''The design pages say sibling; comments and names said relative. What is related by its name, and a
path relative to a directory, keep their word. Nothing but names changes.''')
def relative():
    move_path(r'^(rsocket-core/src/readiness/epoll/)relatives\.rs', r'\1siblings.rs')
    move_path(r'^(rsocket-core/tests/readiness_)relatives\.rs', r'\1siblings.rs')
    names = [n for n in files(*RS_MD) if not n.startswith('tests/')]
    stay = (r'their relatives', r'and its relatives', r'relative to', r'A function has relatives', r'Every relative of a hook',
            r'families, relatives and strangers', r'that are no relatives', r'generator/[^|]*\|[^|]*\|', r'their relatives, and dup2')
    for name in names:
        text = read(name)
        text = re.sub(r'\b([Rr])elatives(\s+(?://[/!]? )?)by(\s+(?://[/!]? )?)fork\b', lambda m: ('F' if m.group(1) == 'R' else 'f') + 'ork' + m.group(2) + 'siblings', text)
        text = re.sub(r'\brelative(\s+(?://[/!]? )?)by(\s+(?://[/!]? )?)fork\b', r'fork\1sibling', text)
        text = re.sub(r'\bforked(\s+(?://[/!]? )?)relative', r'fork\1sibling', text)
        write(name, text)
    apply(Word('relative', 'sibling'), names, protect=stay)
    articles('sibling', 'fork')
    glossary('fork sibling')

# ---------------------------------------------------------------- 6c holder -> owner
LOCKS = re.compile(r'(rsocket-sync/|/guard\.rs|arenas_lock|retired\.rs|pairing_lock|channel/sender|lock\.rs|shm_two|shm_models|shm_support|life_support|placement/|datagram/|ways\.rs|room\.rs|residual\.rs|readiness/)')
@step('holder', 'Call a process that has a connection its owner',
'''A lock has a holder. The processes that have a descriptor of a connection are its owners, and are
counted as such. Nothing but names changes.''')
def holder():
    move_path(r'^(rsocket-core/src/conn/)holders\.rs', r'\1owners.rs')
    move_path(r'^(rsocket-core/tests/(?:family|fork_group)_)holders\.rs', r'\1owners.rs')
    names = [n for n in files(*RS_MD) if not LOCKS.search(n) and not n.startswith('tests/')]
    gap = r'(\s+(?://[/!]? )?)'
    for name in names:
        text = read(name)
        sub = lambda p, r: re.sub(p, r, text)
        text = sub(r'\bconn::holders\b', 'conn::owners')
        text = sub(r'(use [\w:]*conn::\{[^;]*?)\bholders\b', r'\1owners')
        text = sub(r'\bmod holders\b', 'mod owners')
        text = sub(r'\bHolders\b', 'Owners')
        text = sub(r'(?<=\.)holders\b(?!\()', 'owners')
        text = sub(r'\bholders\.rs\b', 'owners.rs')
        text = sub(r'\bpub holders:', 'pub owners:')
        text = sub(r'\bSANDBOXED_HOLDER\b', 'SANDBOXED_OWNER')
        text = sub(rf'\b(last|any|all|several){gap}holder', r'\1\2owner')
        text = sub(rf'\b([Aa]){gap}holder{gap}(has{gap}entered|of{gap}the{gap}same{gap}slot|of{gap}everything|of{gap}this{gap}process|of{gap}the{gap}(?:TCP{gap})?(?:descriptor|connection))', lambda m: m.group(1) + 'n' + re.sub(r'holder', 'owner', m.group(0)[1:]))
        text = sub(rf'\b([Tt]he|[Ff]or|connection.s|of{gap}a{gap}connection|other|[Mm]ore|its){gap}(holders?)\b(?!{gap}?(?:of{gap}the{gap}lock|is{gap}about|looks|lets|goes{gap}on|lives|of{gap}it))', lambda m: m.group(0)[:-len(re.search(r'holders?$', m.group(0)).group(0))] + re.search(r'holders?$', m.group(0)).group(0).replace('holder', 'owner')) if re.search(r'(conn/owners|conn/fork_group|migrat|invitation|fork_safe|machine\.rs|slot\.rs|pairing_state|fork_group_owners|life\.rs|fork-exec|search\.rs)', name) else text
        text = sub(rf'\bas{gap}a{gap}holder\b', r'as\1an\2owner')
        text = sub(rf'\bbeing{gap}a{gap}holder\b', r'being\1an\2owner')
        text = sub(r'\bA holder (has entered|that did not map|that hands on)', r'An owner \1')
        text = sub(r'\bwho are holders\b', 'who are owners')
        text = sub(r'^\| holders \|', '| owners |') if False else re.sub(r'^\| holders \|', '| owners |', text, flags=re.M)
        text = sub(r'an error in the holders', 'an error in the owners')
        text = sub(r'of the holders: the child', 'of the owners: the child')
        text = sub(r'\bone of two holders\b', 'one of two owners')
        write(name, text)
    articles('owner')
    glossary('owner')

# ---------------------------------------------------------------- 7 known -> option_cache
@step('known', 'Call what the kernel said of a socket its option cache',
'''`known` is a word of every second comment. What a connection remembers of its socket's options, so
that the kernel is not asked before each sleep, is the option cache. Nothing but names changes.''')
def known():
    move_path(r'^(rsocket-core/src/conn/)known\.rs$', r'\1option_cache.rs')
    for name in files('.rs'):
        if not name.startswith(('rsocket-core/', 'rspreload', 'rsocket-capi', 'fuzz')):
            continue
        text = text0 = read(name)
        if name.endswith('conn/option_cache.rs'):
            text = re.sub(r'\bKnown\b(?=[ ({:\]])', 'OptionCache', text)
            text = re.sub(r'\blet known\b', 'let cache', text)
            text = re.sub(r'(?<![\w.])known\.', 'cache.', text)
        text = re.sub(r'\bconn::known\b', 'conn::option_cache', text)
        text = re.sub(r'(use crate::conn::\{[^;]*?)(?<![\w:])known\b', r'\1option_cache', text)
        text = re.sub(r'(?<![\w])known::Fact\b', 'option_cache::Fact', text)
        text = re.sub(r'\boption_cache::Known\b', 'option_cache::OptionCache', text)
        text = re.sub(r'\.known\.(held|holds|all_held|keep|change)\b', r'.option_cache.\1', text)
        if re.search(r'conn/mod\.rs$', name):
            text = re.sub(r'\bmod known;', 'mod option_cache;', text)
        if re.search(r'rsocket-core/src/conn/', name):
            text = re.sub(r'\bpub known: Known\b', 'pub option_cache: OptionCache', text)
        if text != text0:
            write(name, text)
    regex(r'conn/known\.rs', 'conn/option_cache.rs', files('.md'))
    glossary('socket-option cache')
    glossary_word('socket-option cache', 'option cache')

# ---------------------------------------------------------------- 8 patience -> call deadline
@step('patience', 'Call the patience of a call its deadline',
'''How long a call may wait, and what ends it before, is `CallDeadline`; the layer of readiness has a
`Deadline` of its own. How soon a waiter looks again though nothing woke it is `recheck_after`.''')
def patience():
    move_path(r'^(rsocket-core/src/waiting/)patience\.rs$', r'\1call_deadline.rs')
    for name in files('.rs'):
        if not name.startswith(('rsocket-core/', 'rspreload', 'rsocket-capi', 'fuzz')):
            continue
        text = text0 = read(name)
        accepts = re.search(r'native/kernel\.rs$|plain/kernel\.rs$', name)
        # How soon to look again.
        text = re.sub(r'\bfn patience\b', 'fn recheck_after', text)
        text = re.sub(r'\b(datagram::ready|fork_safe|rest|soon|reader|source|socket)((?:::|\.))patience\(', r'\1\2recheck_after(', text)
        text = re.sub(r'\bself\.source\.patience\(', 'self.source.recheck_after(', text)
        text = re.sub(r'\[`patience`\]', '[`recheck_after`]', text)
        text = re.sub(r'\bkernel::Patience\b', 'kernel::AcceptDeadline', text)
        text = re.sub(r'\bpatience::Patience\b', 'call_deadline::CallDeadline', text)
        text = re.sub(r'\b(waiting|super|socket)::patience\b', r'\1::call_deadline', text)
        text = re.sub(r'\bpatience::(?=[a-zA-Z{])', 'call_deadline::', text)
        text = re.sub(r'\bmod patience;', 'mod call_deadline;', text)
        text = re.sub(r'(use crate::waiting::\{[^;]*?)(?<![\w:])patience\b', r'\1call_deadline', text)
        text = re.sub(r'(call_deadline::\{[^;]*?)\bPatience\b', r'\1CallDeadline', text)
        text = re.sub(r'\bPatience\b', 'AcceptDeadline' if accepts else 'CallDeadline', text)
        if re.search(r'Patience|call_deadline|AcceptDeadline|CallDeadline', text) and not re.search(r'readiness|/soon\.rs', name):
            def act(kind, part):
                if kind != 'code':
                    return part
                part = re.sub(r'(use [\w:]*\{[^;]*?)\bpatience\b', r'\1recheck_after', part) if re.search(r'socket/mod\.rs$', name) else part
                return re.sub(r'(?<![\w.])patience\b(?!\()', 'deadline', part)
            text = on_text(name, text, act)
        elif re.search(r'readiness|/soon\.rs|socket/(mod|waits)\.rs|readiness_', name):
            def act(kind, part):
                return re.sub(r'(?<![A-Za-z_])patience\b', 'recheck_after', part) if kind == 'code' else part
            text = on_text(name, text, act)
        text = re.sub(r'whether it can have patience', 'whether it has to be looked at again', text)
        text = re.sub(r'/// Members with patience\.', '/// Members that have to be looked at again.', text)
        text = re.sub(r'is on device, has patience, or', 'is on device, has to be looked at again, or', text)
        text = re.sub(r'the kernel that will speak, or patience\.', 'the kernel that will speak, or a time-out.', text)
        if text != text0:
            write(name, text)
    regex(r'waiting/patience\.rs', 'waiting/call_deadline.rs', files('.md'))
    glossary('call deadline')

# ---------------------------------------------------------------- 9 lent -> close_while_blocked
@step('lent', 'Call what closes under a sleep close_while_blocked',
'''A thread closes a descriptor under another one's call: that is what the file is about, not that it
lends its descriptor meanwhile. Nothing but names changes.''')
def lent():
    move_path(r'^(rsocket-core/src/waiting/)lent\.rs$', r'\1close_while_blocked.rs')
    for name in files('.rs'):
        if not name.startswith(('rsocket-core/', 'rspreload', 'rsocket-capi', 'fuzz', 'tests/tests')):
            continue
        text = text0 = read(name)
        text = re.sub(r'\bLentGuard\b', 'CallsGuard', text)
        text = re.sub(r'\b(waiting|super)::lent\b', r'\1::close_while_blocked', text)
        text = re.sub(r'(?<![\w])lent::', 'close_while_blocked::', text)
        text = re.sub(r'\bmod lent;', 'mod close_while_blocked;', text)
        text = re.sub(r'(use crate::waiting::\{[^;]*?)(?<![\w:])lent\b', r'\1close_while_blocked', text)
        text = re.sub(r'\[`lent`\]', '[`close_while_blocked`]', text)
        if text != text0:
            write(name, text)
    pages = files('.md')
    regex(r'waiting/lent\.rs', 'waiting/close_while_blocked.rs', pages)
    regex(r'`lent::', '`close_while_blocked::', pages)
    regex(r'`LentGuard`', '`CallsGuard`', pages)
    glossary('close while blocked')

# ---------------------------------------------------------------- 10 pace -> poll_backoff, answers -> yield_predictor
@step('pace', 'Call the pace of looks a poll back-off',
'''A receiver that only receives looks less often, so that the sender keeps its cache lines. Nothing but
names changes.''')
def pace():
    move_path(r'^(rsocket-core/src/conn/)pace\.rs$', r'\1poll_backoff.rs')
    for name in files('.rs'):
        if not name.startswith('rsocket-core/'):
            continue
        text = text0 = read(name)
        text = re.sub(r'\bconn::pace\b', 'conn::poll_backoff', text)
        text = re.sub(r'\bmod pace;', 'mod poll_backoff;', text)
        text = re.sub(r'(use crate::conn::\{[^;]*?)(?<![\w:])pace\b', r'\1poll_backoff', text)
        text = re.sub(r'\bPace\b(?=[ ({:;,)])', 'PollBackoff', text)
        text = re.sub(r'\.pace\.', '.poll_backoff.', text)
        text = re.sub(r'\bpub pace:', 'pub poll_backoff:', text)
        if name.endswith('conn/poll_backoff.rs'):
            text = re.sub(r'\blet pace\b|\bpace(?=: &PollBackoff)', lambda m: m.group(0).replace('pace', 'backoff'), text)
            text = re.sub(r'(?<![\w.])pace\.', 'backoff.', text)
            text = re.sub(r'&pace\b', '&backoff', text)
        if text != text0:
            write(name, text)
    regex(r'conn/pace\.rs', 'conn/poll_backoff.rs', files('.md'))
    glossary('poll back-off')

@step('answers', 'Call what predicts answers a yield predictor',
'''It says whether a look at the device before a yield of the CPU is in vain. Nothing but names
changes.''')
def answers():
    move_path(r'^(rsocket-core/src/(?:bridge|relay)/)answers\.rs$', r'\1yield_predictor.rs')
    for name in files('.rs'):
        if not re.search(r'rsocket-core/src/(bridge|relay)/(mod|table|straight|bypass|yield_predictor|pump|loopback)', name):
            continue
        text = text0 = read(name)
        text = re.sub(r'\bmod answers;', 'mod yield_predictor;', text)
        text = re.sub(r'\bsuper::answers\b', 'super::yield_predictor', text)
        text = re.sub(r'(?<=::)Answers\b(?=;)|\bAnswers::|\bAnswers(?= \{)|: &?Answers\b', lambda m: m.group(0).replace('Answers', 'YieldPredictor'), text)
        text = re.sub(r'\b(bridge|relay|found)\.answers\.', r'\1.yield_predictor.', text)
        text = re.sub(r'^(\s*(?:pub )?)answers: YieldPredictor', r'\1yield_predictor: YieldPredictor', text, flags=re.M)
        if name.endswith('yield_predictor.rs'):
            text = re.sub(r'\blet answers\b', 'let predictor', text)
            text = re.sub(r'(?<![\w.`])answers(?=\.(?:too_soon|looked|received|sent|forget))', 'predictor', text)
            text = re.sub(r'&answers\b|\banswers(?=: &YieldPredictor)', lambda m: m.group(0).replace('answers', 'predictor'), text)
        if text != text0:
            write(name, text)
    regex(r'(bridge|relay)/answers\.rs', r'\1/yield_predictor.rs', files('.md'))
    regex(r'`answers\.rs`', '`yield_predictor.rs`', files('.md'))
    glossary('yield predictor')

# ---------------------------------------------------------------- 12 marks -> handover_state
@step('marks', 'Call the marks of a window its handover state',
'''They are the words by which two ends agree where bytes travel. Nothing but names changes.''')
def marks():
    module('marks', 'handover_state', ['handover state'])
    regex(r'`marks`', '`handover_state`', [n for n in files('.rs') if n.startswith('rsocket-core')])
    regex(r'channel, marks, switch,', 'channel, handover state, switch,', files('ARCHITECTURE.md'))

# ---------------------------------------------------------------- 9' overheard, tally, live, home
@step('overheard', 'Call what overhears first bytes a tap of first bytes',
'''Nothing but names changes.''')
def overheard():
    module('overheard', 'first_bytes_tap', ['first-bytes tap'])

@step('tally', 'Call the tally of a connection its counters',
'''The library has counters of its own, so these are `conn_counters`. Nothing but names changes.''')
def tally():
    module('tally', 'conn_counters', ['connection counters'])
    in_code([('Tally', 'ConnCounters')])
    for name in files('.md'):
        text = read(name)
        new = re.sub(r'tally: bytes, messages   counters', 'bytes, messages          counters', text)
        if new != text:
            write(name, new)

@step('live', 'Call the room of the live segment so',
'''`live` is what a process does. The room writes the file that rsstat reads, the live segment. Nothing
but names changes.''')
def live():
    module('live', 'live_segment', ['live segment'])
    regex(r'config, rules, live, tap', 'config, rules, live_segment, tap', files('ARCHITECTURE.md'))

@step('home', 'Call the room of network namespaces netns',
'''That is the word of ip(8) for it. Nothing but names changes.''')
def home():
    module('home', 'netns', ['network namespace'])
    regex(r'\bring_from_home\b', 'ring_from_netns', files('.rs'))

# ---------------------------------------------------------------- placement -> direct_placement
@step('placement', 'Call the placement of direct writes direct placement',
'''Direct data placement is the field's word for riomap and riowrite. Nothing but names changes.''')
def placement():
    regex(r'placement    direct writes', 'direct_placement  direct writes', files('ARCHITECTURE.md'))
    module('placement', 'direct_placement', ['direct data placement'])
    glossary_word('direct data placement', 'direct placement')

# ---------------------------------------------------------------- witness -> fingerprint
@step('witness', 'Call the witness of a stream its fingerprint',
'''It is a digest of the first bytes of both directions. Nothing but names changes.''')
def witness():
    module('witness', 'fingerprint', ['stream fingerprint'])
    in_code([('WITNESS', 'FINGERPRINT'), ('witnessed', 'fingerprint_bytes'), ('witnessing', 'fingerprints'),
             ('unwitnessed', 'forget_fingerprint')])
    regex(r'\.witness\b', '.fingerprint', [n for n in files('.rs') if n.startswith('rsocket-core/')])
    regex(r'\bpub witness:', 'pub fingerprint:', [n for n in files('.rs') if n.startswith('rsocket-core/src/conn/')])
    regex(r'names and witnesses are', 'names and fingerprints are', files('.rs'))

# ---------------------------------------------------------------- visitors -> connect_requests
@step('visitors', 'Call the visitors of an offer connect requests',
'''A process that comes to an offer asks to be connected. Nothing but names changes.''')
def visitors():
    module('visitors', 'connect_requests', ['connect request'])

# ---------------------------------------------------------------- straight -> bypass, kept, hearing, notes
@step('straight', 'Call the way past an empty channel a bypass',
'''Nothing but names changes.''')
def straight():
    regex(r'bypass \(straight\) -+\+', 'bypass ---------------------+', files('.md'))
    module('straight', 'bypass', ['bypass'])
    names = {n for n in identifiers('straight') if not n.startswith(('Send', 'Receive'))}
    in_code([(n, n.replace('straight', 'bypass')) for n in names if n != 'straight'])
    in_code([('send_bypass', 'send_bypassing'), ('receive_bypass', 'receive_bypassing')])

@step('kept', 'Call what stays in the device deferred',
'''Receive data that a call leaves in the device's memory is taken by a later one. Nothing but names
changes.''')
def kept():
    module('kept', 'deferred', ['deferred receive data'])
    glossary_word('deferred receive data', 'deferred')

@step('hearing', 'Call who hears of a device the owner of its events',
'''One thread waits for the events of a completion queue: that is `CqOwnership`. Nothing but names
changes.''')
def hearing():
    module('hearing', 'cq_ownership', ['CQ event ownership'])
    in_code([('Hearing', 'CqOwnership')])
    glossary_word('CQ event ownership', 'CQ ownership')

@step('notes', 'Call the notes of two bridges peer control messages',
'''Nothing but names changes. The page of the wire format keeps its word.''')
def notes():
    module('notes', 'peer_control', ['peer control messages'])
    glossary_word('peer control messages', 'peer control')

@step('beside', 'Call RDMA beside a TCP connection TCP-anchored',
'''The flag and the two files have the word of the design pages now. Nothing but names changes.''')
def beside():
    module('beside', 'tcp_anchored', ['TCP-anchored'])
    in_code([('BESIDE', 'TCP_ANCHORED'), ('HEARD_BESIDE', 'HEARD_TCP_ANCHORED')], kinds=('code', 'name', 'prose'))

# ---------------------------------------------------------------- tail -> residual bytes
@step('tail', 'Call the tail of a returning direction residual bytes',
'''They are what the peer had not read of the channel, and are sent again by TCP. Nothing but names
changes.''')
def tail():
    move_path(r'^(rsocket-core/(?:src|tests)/(?:.*/)?)tail_tests\.rs$', r'\1residual_tests.rs')
    names = [n for n in files('.rs', '.md') if n.startswith(('rsocket-core/', 'rspreload', 'docs/', 'ARCH'))
             and not re.search(r'/tap/|placement/arrive', n)]
    apply(Word('tail', 'residual', 'residual bytes', plurals=('tails', 'residuals', 'residual bytes')), names,
          protect=(r'`tail ', r'tail -'))
    gap = r'(\s+(?://[/!]? )?)'
    for name in names:
        text = text0 = read(name)
        text = re.sub(rf'\b[Oo]f{gap}a{gap}long{gap}residual{gap}bytes', r'Of\1many\3residual\4bytes', text)
        text = re.sub(rf'\ba{gap}residual{gap}bytes', r'residual\2bytes', text)
        for one, many in [('begins', 'begin'), ('goes', 'go'), ('has', 'have'), ('is', 'are')]:
            text = re.sub(rf'\bresidual{gap}bytes{gap}{one}\b', rf'residual\1bytes\2{many}', text)
        write(name, text) if text != text0 else None
    regex(r'are \*residual bytes\* \((?:tail|residual bytes)\)', 'are *residual bytes*', files('.md'))
    glossary('residual bytes')

# ---------------------------------------------------------------- 11 bell -> waker, ring -> wake, sleeper word -> waiter slot
@step('bell', 'Call the bell of a sleeper its waker',
'''What a thread sleeps on beside its TCP socket is a waker, as in the standard library. A thread that
wakes another one is the waking thread. A queue pair keeps its doorbell. Nothing but names changes.''')
def bell():
    if not [n for n in files() if re.search(r'device/shm/bell(/|\.rs)|shm/src/bell', n)]:
        return
    sources = [n for n in files('.rs') if n.startswith(CODE_DIRS)]
    # The word was that of a thread.
    for name in sources:
        if name.endswith('park.rs'):
            text = read(name)
            text = re.sub(r"\bthe waker's belated", "the waking thread's belated", text)
            text = re.sub(r"\bthe waker finds", 'the waking thread finds', text)
            text = re.sub(r"is the waker's, in", "is the waking thread's, in", text)
            text = re.sub(r'\bA waker that is killed', 'A waking thread that is killed', text)
            text = re.sub(r'\bthe next waker one look', 'the next waking thread one look', text)
            text = re.sub(r"\bThe waker's fence", "The waking thread's fence", text)
            write(name, text)
    regex(r'; a waker publishes, fences', '; a waking thread publishes, fences', files('.md'))
    move_path(r'^((?:rsocket-\w+)/src/(?:.*/)?)bell(\.rs|/)', r'\1waker\2')
    w = Word('bell', 'waker')
    names = files('.rs', '.md')
    apply(w, names, protect=(r'BellsRung', r'BellsHeard'))
    in_code([('BellsRung', 'WakeupsRung'), ('BellsHeard', 'WakeupsReceived')])
    mangled([('bell', 'waker')])
    glossary('waker')
    glossary('front waker')

RINGERS = re.compile(r'(device/shm/(waker|park|queue_pair|layout|mod|arena)|shm/src/(waker|park|arena)|socket/(wait|brief|bypass)\.rs|/(link|ends|arenas)\.rs|arena_record|datagram/(waiters|mod|ready|service)|readiness|'
                     r'bridge/cq_ownership|relay/hearing|direct_placement/thread|pairing/greeting|shm_models|shm_two|shm_bench|bridge_models|io_uring_none)')
NO_BELLS = re.compile(r'(io_uring|device/rdma|rings\.rs|mailbox|endpoint|datagram/(send|tests)|staging|pair/|direct_placement|rdma_conformance|facts/image|docs/(calls|bench|limits|testing)|channel/|channel\.md|datagrams\.md|wire-protocol|data-path\.md|rsockets\.md|iomap)')
@step('ring', 'Say that a thread wakes another one, not that it rings',
'''Rings are what messages and credits travel by. Nothing but names changes.''')
def ring():
    sources = [n for n in files('.rs') if n.startswith(CODE_DIRS)]
    # A test's support has a function of that name already, of slots.
    regex(r'\bfn wake\(slot: SlotId,', 'fn wake_slot(slot: SlotId,', files('readiness_support/mod.rs'))
    regex(r'(?<![\w.])wake\((?=self\.slot, |slot, )', 'wake_slot(', files('readiness_support/mod.rs'))
    some = [n for n in sources if RINGERS.search(n)]
    in_code([('ring', 'wake'), ('try_ring', 'try_wake'), ('must_ring', 'must_wake'), ('ring_all', 'wake_all'),
             ('ring_there', 'wake_there'), ('ring_from_netns', 'wake_from_netns'), ('Rang', 'Woke'), ('rang', 'woke'),
             ('rung', 'woken'), ('RUNG', 'WOKEN'), ('RUNG_WORDS', 'WOKEN_WORDS'), ('napper_rung', 'napper_woken')],
            [n for n in some if not re.search(r'datagram/(?!waiters|mod|ready|service)', n)])
    in_code([('Rang', 'Woke'), ('RUNG_WORDS', 'WOKEN_WORDS'), ('try_ring', 'try_wake'), ('must_ring', 'must_wake'), ('ring_all', 'wake_all'),
             ('ring_there', 'wake_there'), ('ring_from_netns', 'wake_from_netns'), ('napper_rung', 'napper_woken')], sources)
    for name in sources + files('.md'):
        text = read(name)
        text = re.sub(r'\b(waker|park|far|waiters)::ring\b', r'\1::wake', text)
        write(name, text)
    gap = r'(\s+(?://[/!]? )?)'
    verbs = (r'to|may|can|could|must|will|would|not|who|whoever|whatever|nobody|somebody|peers?|thread|it|and|bridge|others|dies|that|which|side|never|socket|'
             r'news|eventfd|they|first|itself|then|alone|does|he|we|one')
    for name in sources + [n for n in files('.md')]:
        if NO_BELLS.search(name):
            continue
        def act(kind, part):
            if kind not in ('prose', 'figure'):
                return part
            part = re.sub(rf'\b(re)?rung\b', r'woken', part)
            part = re.sub(r'\brang\b', 'woke', part)
            part = re.sub(r'\bringing\b', 'waking', part)
            part = re.sub(r'\bRings\b(?= (?:the|this|a|its))', 'Wakes', part)
            part = re.sub(rf'\b({verbs}){gap}(rings?)\b(?!{gap}?(?:of|by|from))', lambda m: m.group(1) + m.group(2) + m.group(3).replace('ring', 'wake'), part)
            signals = {'wake': 'signal', 'wakes': 'signals', 'Wakes': 'Signals', 'waking': 'signalling'}
            part = re.sub(rf'\b(wakes?|Wakes|waking){gap}((?:(?:a|the|its|this|that|our|all|own){gap})?(?:front{gap})?wakers?\b)',
                          lambda m: signals[m.group(1)] + m.group(2) + m.group(3), part)
            return part
        text = read(name)
        new = on_text(name, text, act) if re.search(r'\b(r[iau]ng|wak)', text, re.I) else text
        if new != text:
            write(name, new)
    glossary('wake')
    regex(r'`park::ring`', '`park::wake`', files('.md'))
    regex(r'one that peers ring by an eventfd', 'one that peers wake by an eventfd', files('docs/glossary.md'))

@step('sleeper_word', 'Call the word of a sleeper a waiter slot',
'''Words are what the channel's rings are made of. Nothing but names changes.''')
def sleeper_word():
    module('sleeper_word', 'waiter_slot')
    gap = r'(\s+(?://[/!]? )?)'
    for name in files('.rs', '.md'):
        text = read(name)
        new = re.sub(rf'\bsleeper{gap}word', r'waiter\1slot', text)
        if new != text:
            write(name, new)
    glossary('waiter slot')

# ---------------------------------------------------------------- 14 bank -> buffer class, lane -> ring
@step('bank', 'Call the banks of a receive buffer buffer classes',
'''A bank is memory that a processor addresses by turns; the small and the large part of a buffer are
classes by size. Nothing but names changes.''')
def bank():
    regex(r'into two banks \(buffer classes\)', 'into two buffer classes', files('.rs'))
    module('banks', 'buffer_classes')
    names = [n for n in files('.rs', '.md') if n.startswith(('rsocket-', 'rspreload', 'docs/', 'fuzz', 'ARCH'))]
    apply(Word('bank', 'class', 'class', plurals=('banks', 'classes', 'classes')), names)
    strings(Word('bank', 'class'))
    glossary('buffer class')

@step('lane', 'Call the lanes of a direction rings',
'''Messages go by the message ring, credits by the credit ring. Nothing but names changes.''')
def lane():
    names = [n for n in files('.rs', '.md') if n.startswith(('rsocket-', 'rspreload', 'docs/', 'fuzz', 'ARCH'))]
    gap = r'(\s+(?://[/!]? )?)'
    for name in names:
        text = text0 = read(name)
        text = re.sub(rf'\b([Dd])ata{gap}lane', lambda m: ('M' if m.group(1) == 'D' else 'm') + 'essage' + m.group(2) + 'ring', text)
        text = re.sub(rf'\b([Cc])ontrol{gap}lane', r'\1redit\2ring', text)
        if text != text0:
            write(name, text)
    apply(Word('lane', 'ring'), names)
    regex(r'state and lane agree', 'state and ring agree', files('shm_models.rs'))
    glossary('message ring')
    glossary('credit ring')

# ---------------------------------------------------------------- 15 cut -> switch offset, way back -> fallback
@step('cut', 'Call the cut of a direction its switch offset',
'''It is the byte at which a direction leaves TCP: what the design pages call N. Nothing but names
changes.''')
def cut():
    module('cut', 'switch_offset')
    regex(r'ytes beyond the cut\b', 'ytes beyond the offset', [n for n in files('.rs') if n.startswith('rsocket-core/src')])
    own = [n for n in files('.rs') if re.match(r'rsocket-core/(src/(attach|socket|bridge|relay|handover|channel|conn|pairing|readiness|live_segment|exec_handover)|tests)', n)]
    pages = files('.md')
    exact = {n for name in own for n in re.findall(r'(?<!\w)\w*(?:the_cut|publish_cut|cut_told|Cut)\w*(?!\w)', read(name))}
    pairs = [(n, n.replace('the_cut', 'the_switch').replace('publish_cut', 'publish_switch_offset').replace('cut_told', 'switch_offset_told'))
             for n in exact if 'Cut' not in n]
    pairs += [('CutReached', 'SwitchReached'), ('CutPublished', 'SwitchPublished'), ('Cut', 'SwitchOffset'), ('CUT', 'SWITCH_OFFSET')]
    in_code(pairs, own + pages, kinds=('code', 'name', 'string', 'figure'))
    for name in own + pages:
        text = text0 = read(name)
        text = re.sub(r'\b(handover_state|marks)::cut\b', r'\1::switch_offset', text)
        text = re.sub(r'(?<![\w:])send::cut\b', 'send::fix_switch_offset', text)
        if name.endswith('socket/send.rs'):
            text = re.sub(r'\bfn cut\b', 'fn fix_switch_offset', text)
            text = re.sub(r'(?<![\w.:])cut\((?=guard|&guard|s\b|id|call|ends)', 'fix_switch_offset(', text)
            text = re.sub(r'\bcut\(\)', 'fix_switch_offset()', text)
        if re.search(r'(handover_state|marks)\.rs$', name):
            text = re.sub(r'\bfn cut\b', 'fn switch_offset', text)
            text = re.sub(r'\[`cut`\]', '[`switch_offset`]', text)
            text = re.sub(r'(?<![\w.:])cut\(', 'switch_offset(', text)
        if not re.search(r'\bcut\b', text):
            write(name, text) if text != text0 else None
            continue
        gap = r'(\s+(?://[/!]? )?)'
        noun = rf'\b(the|The|a|no|No|this|its|without a|The first){gap}cut\b(?!{gap}(?:up|off|short|to))'
        def act(kind, part):
            return re.sub(noun, r'\1\2switch offset', part) if kind in ('prose', 'figure') and not re.search(r'RDMA_IOMAPSIZE', part) else part
        if not re.search(r'docs/(testing|spec/wire)', name):
            text = on_text(name, text, act)
        if text != text0:
            write(name, text)
    in_code([('cut', 'switch_offset')], [n for n in files('.rs') if re.search(
        r'(handover_state|shm/layout|shm/direction|socket/(gather|ready|waits)|handover/(detach|stand_in)|overtaken_tests|life_support/\w+)\.rs$', n)], kinds=('code', 'name'))
    glossary('switch offset')

@step('fallback', 'Call the way back to TCP the fallback',
'''Nothing but names changes.''')
def fallback():
    gap = r'(\s+(?://[/!]? )?)'
    for name in files('.rs', '.md'):
        if not name.startswith(('rsocket-core', 'rspreload', 'docs/', 'ARCH')):
            continue
        text = read(name)
        new = re.sub(rf'\b(the|a|earlier|The|A|whose){gap}way{gap}back\b(?!{gap}to{gap}the{gap}caller)', r'\1\2fallback', text)
        new = re.sub(r'switch, way back$', 'switch, fallback', new, flags=re.M)
        if new != text:
            write(name, new)
    glossary('fallback')

# ---------------------------------------------------------------- 13 knock, welcome -> hello, hello-ack
@step('knock', 'Call knock and welcome hello and hello-ack',
'''They are the two messages of an attach. Counters keep their printed names. Nothing but names
changes.''')
def knock():
    names = [n for n in files('.rs', '.md') if n.startswith(('rsocket-core/', 'rspreload', 'docs/', 'ARCH', 'fuzz'))]
    pairs = [('Knock', 'Hello'), ('Welcome', 'HelloAck'), ('KNOCK', 'HELLO'), ('WELCOME', 'HELLO_ACK'), ('Knocked', 'HelloSent'),
             ('KnockSent', 'HelloSent'), ('KnockAnswered', 'HelloAnswered'), ('WelcomeRead', 'HelloAckRead'), ('Welcomed', 'Acknowledged')]
    in_code(pairs, names, kinds=('code', 'name', 'figure'))
    in_code(pairs, [n for n in files('.rs') if re.search(r'/machine\.rs$', n)], kinds=('code', 'name', 'string'))
    gap = r'(\s+(?://[/!]? )?)'
    for name in names:
        text = text0 = read(name)
        if re.search(r'pairing(\.rs|/)|(attach|handover)/hello\.rs|attach_meeting', name):
            def act(kind, part):
                if kind != 'code':
                    return part
                if re.search(r'pairing(\.rs|/)', name):
                    part = re.sub(r'\bfn knock\b', 'fn say_hello', part)
                    part = re.sub(r'(?<![\w:.])knock\(', 'say_hello(', part)
                    part = re.sub(r'\bknock_there\b', 'say_hello_there', part)
                    part = re.sub(r'(use [\w:]*greeting::\{[^;]*?)\bknock\b', r'\1say_hello', part)
                    part = re.sub(r'(?<![\w:.])knocked\b(?=\()', 'hello_sent', part)
                    part = re.sub(r'\bunwelcomed\b', 'unacknowledged', part)
                if not name.endswith('attach_meeting.rs'):
                    part = re.sub(r'(?:(?<=\.\.)|(?<![\w:.]))knock\b(?!\()', 'hello', part)
                    part = re.sub(r'\bself\.knock\b', 'self.hello', part)
                return re.sub(r'(?<![\w:.])welcome\b', 'hello_ack', part)
            text = on_text(name, text, act)
        def act(kind, part):
            if kind not in ('prose', 'figure') or re.search(r'wakeups\.|`attach\.', part):
                return part
            part = re.sub(rf'\b(the|The|a|A|its|his|this|another|first|that){gap}knock\b', r'\1\2hello', part)
            part = re.sub(rf'\b(the|The|a|A|its|his|this|another){gap}welcome\b', r'\1\2hello-ack', part)
            part = re.sub(r'offer, knock, answer, welcome', 'offer, hello, answer, hello-ack', part)
            part = re.sub(r'one another: knock, answer, welcome', 'one another: hello, answer, hello-ack', part)
            return re.sub(rf'\bsend{gap}its{gap}welcome\b', r'send\1its\2hello-ack', part)
        text = on_text(name, text, act)
        text = re.sub(r'\bgreeting::knock_there\b', 'greeting::say_hello_there', text)
        text = re.sub(r'\bgreeting::knock\b', 'greeting::say_hello', text)
        text = re.sub(r'(?<![\w:])Knocked\b', 'HelloSent', text) if name.endswith('.md') else text
        text = re.sub(r'\bhello::Knock\b', 'hello::Hello', text)
        text = re.sub(r'\bhello::Welcome\b', 'hello::HelloAck', text)
        if text != text0:
            write(name, text)
    regex(r'Hello and HelloAck carry it', '`Hello` and `HelloAck` carry it', files('.md'))
    regex(r'\bKnock and Welcome carry it', '`Hello` and `HelloAck` carry it', files('.md'))
    regex(r'^\| welcome \|', '| hello-ack |', files('docs/system-calls.md'), re.M)
    glossary('hello, hello-ack')
