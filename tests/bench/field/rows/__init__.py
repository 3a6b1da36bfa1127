"""The rows of the field ladder, by what they run. To add one: a function from FieldBed to values,
and a Row in its file's ROWS."""

from . import caches, databases, messages, own, parallel, rpc, web

ROWS = (
    *own.ROWS,
    *caches.ROWS,
    *databases.ROWS,
    *web.ROWS,
    *rpc.ROWS,
    *messages.ROWS,
    *parallel.ROWS,
    *own.COSTS,
)
