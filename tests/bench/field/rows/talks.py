"""Cells of what Python talks by a package of its own: a server and a client that are one program of
`talks`. It knows none of them."""

import os

from ladder.run import free_port

from ..bed import FIELD, interpreter, told


def talk(name, *how, per=1e3):
    """A cell: `talks/NAME serve PORT HOW...`, and its client. `per`: the unit of the rate."""

    def cell(bed):
        port = free_port()
        program = os.path.join(FIELD, "talks", name)
        server = bed.server(port, interpreter(), program, "serve", port, *how)
        out = bed.talk(name, "ask", port, bed.seconds, *how, python=interpreter())
        bed.stop(server)
        return told(out, per)

    return cell
