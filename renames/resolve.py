"""Paths of a tree that seem to lead nowhere: a cheap look before the compiler's."""
import sys,re; sys.path.insert(0, sys.path[0])
import engine
engine.ROOT=sys.argv[1]
crates={'rsocket_core':'rsocket-core','rsocket_host':'rsocket-host','rsocket_sync':'rsocket-sync','rsocket_stats':'rsocket-stats','rsocket_wire':'rsocket-wire'}
mods={}  # (crate, tuple) -> code
def code_of(name):
    return ''.join(p if k=='code' else ' ' for k,p in engine.rust_segments(engine.read(name)))
for name in engine.files('.rs'):
    m=re.match(r'([\w-]+)/src/(.*)\.rs$',name)
    if not m: continue
    c,path=m.groups(); parts=path.split('/')
    if parts[-1] in('mod','lib','main'): parts=parts[:-1]
    mods[(c,tuple(parts))]=code_of(name)
def defines(code,item):
    return re.search(rf'\b(fn|struct|enum|const|static|trait|type|mod|union|macro_rules!)\s+(mut\s+)?{item}\b',code) or re.search(rf'\buse\b[^;]*\b{item}\b[^;]*;',code) or re.search(rf'^\s*{item}\b\s*(=|\(|:)',code,re.M) and ('macro' in code or 'flags!' in code)
def leaves(text,before=()):
    out=[];depth=0;cur=''
    for ch in text+',':
        if ch=='{': depth+=1
        if ch=='}': depth-=1
        if ch==',' and depth==0:
            t=cur.strip();cur=''
            if not t: continue
            if '{' in t:
                head,inner=t.split('{',1)
                out+=leaves(inner.rsplit('}',1)[0],before+tuple(x.strip() for x in head.split('::') if x.strip()))
            else:
                t=t.split(' as ')[0].strip()
                out.append(before+tuple(x.strip() for x in t.split('::')))
        else: cur+=ch
    return out
bad=set()
def check(c,mod,path,name):
    path=list(path)
    if path[0] in crates: c=crates[path[0]];cur=();path=path[1:]
    elif path[0]=='crate': cur=();path=path[1:]
    elif path[0]=='self': cur=mod;path=path[1:]
    elif path[0]=='super':
        cur=mod
        while path and path[0]=='super': cur=cur[:-1];path=path[1:]
    else: return
    while path and (c,cur+(path[0],)) in mods: cur=cur+(path[0],);path=path[1:]
    if not path or path[0] in('self','*'): return
    code=mods.get((c,cur))
    if code is None: bad.add((name,'::'.join(path)+' in '+'/'.join(cur)));return
    if not defines(code,path[0]): bad.add((name,path[0]+' not in '+c+':'+'/'.join(cur)))
for name in engine.files('.rs'):
    m=re.match(r'([\w-]+)/(src|tests|targets)/(.*)\.rs$',name)
    if not m: continue
    c=m.group(1)
    parts=m.group(3).split('/')
    if parts[-1] in('mod','lib','main'): parts=parts[:-1]
    mod=tuple(parts) if m.group(2)=='src' else ('?',)
    code=code_of(name)
    imported=set(re.findall(r'\bmod (\w+)',code)); where={k:('self',k) for k in imported}
    for u in re.finditer(r'\buse ([^;]+);',code):
        for leaf in leaves(u.group(1)):
            inner = 'mod tests' in code[:u.start()] and mod and leaf[0]=='super'
            check(c,mod+(('tests',) if inner and code[:u.start()].rfind('mod tests')>0 else ()),leaf,name) if not inner else None
            imported.add(leaf[-1] if leaf[-1]!='self' else leaf[-2]); where[leaf[-1] if leaf[-1]!='self' else leaf[-2]]=leaf if leaf[-1]!='self' else leaf[:-1]
        imported.update(re.findall(r' as (\w+)',u.group(1)))
        if '*' in u.group(1): imported.add('*')
    body=re.sub(r'\buse [^;]+;','',code)
    for m2 in re.finditer(r'(?<![\w:.$])([a-z_]\w*)::(?=[a-zA-Z_{<])((?:\w+(?:::)?)+)?',body):
        f=m2.group(1)
        if f in('crate','self','super') or f in crates:
            p=tuple(x for x in (f+'::'+(m2.group(2) or '')).split('::') if x)
            if len(p)>1 and 'mod tests' not in body[:m2.start()]: check(c,mod,p,name)
        elif f in imported or '*' in imported: 
            leaf=where.get(f)
            if leaf and (leaf[0] in ('crate','super','self') or leaf[0] in crates) and mod!=('?',) or leaf and leaf[0] in crates:
                p=leaf+tuple(x for x in (m2.group(2) or '').split('::') if x)
                if 'mod tests' not in body[:m2.start()]: check(c,mod,p,name)
        elif f not in ('core','std','libc','rustix','alloc','u8','u16','u32','u64','usize','i32','i64','isize','u128','f64','str','char','bool','slice','mem','ptr','array'):
            bad.add((name,'unimported '+f+'::'))
for b in sorted(bad): print(*b)
