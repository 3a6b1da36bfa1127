"""bijection.py TREE BASE: code of TREE against that of commit BASE, token by token: each identifier of a file becomes
one other, and no two become the same."""
import sys,re,subprocess; sys.path.insert(0, sys.path[0])
import engine
from collections import defaultdict, Counter
engine.ROOT=sys.argv[1]; base=sys.argv[2]
def git(*a): return subprocess.run(['git',*a],cwd=engine.ROOT,capture_output=True,text=True).stdout
pairs=[]
names=git('diff','-M30%','--name-status',base,'HEAD').split('\n')
for l in names:
    f=l.split('\t')
    if f[0].startswith('R') and f[2].endswith('.rs'): pairs.append((f[1],f[2]))
    elif f[0]=='M' and f[1].endswith('.rs'): pairs.append((f[1],f[1]))
    elif f[0] in('A','D'): print('!',l)
def tokens(text):
    code=''.join(p if k=='code' else (' "S" ' if k=='string' else ' ') for k,p in engine.rust_segments(text))
    code=re.sub(r'\b(pub(\([^)]*\))? )?use [^;]+;','',code)
    code=re.sub(r'(#\[[^\]]*\]\s*)*\b(pub(\([^)]*\))? )?mod \w+;','',code)
    return [t for t in re.findall(r"\w+|[^\w\s]",code) if t not in ',{}();']
maps=Counter(); everywhere=defaultdict(lambda: defaultdict(set))
for a,b in pairs:
    x,y=tokens(git('show',f'{base}:{a}')),tokens(git('show',f'HEAD:{b}'))
    if len(x)!=len(y):
        i=0
        while i<min(len(x),len(y)) and (x[i]==y[i] or re.match(r'\w',x[i]) and re.match(r'\w',y[i])): i+=1
        print('LENGTH',b,len(x),len(y),x[max(0,i-6):i+6],y[max(0,i-6):i+6]); continue
    to,fro=defaultdict(Counter),defaultdict(set)
    for s,t in zip(x,y): to[s][t]+=1; fro[t].add(s); 
    for s,ts in to.items():
        for t in ts: everywhere[s][t].add(b.split('src/')[-1])
        for t in ts:
            if s!=t: maps[(s,t)]+=ts[t]
        if len(ts)>1: print('MANY',b.split('src/')[-1],s,dict(ts))
    for t,ss in fro.items():
        if len(ss)>1: print('SAME',b.split('src/')[-1],t,ss)
if '-g' in sys.argv:
    for s,ts in everywhere.items():
        if len(ts)>1: print('GLOBAL',s,{t:sorted(f) if len(f)<5 else len(f) for t,f in ts.items()})
if '-v' in sys.argv:
    for (s,t),n in sorted(maps.items()): print(s,'->',t,n)
