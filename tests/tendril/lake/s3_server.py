"""An S3-compatible server as a process of its own: s3_server PORT. Says `ready` when it listens.

Requests are answered one at a time: this server checks a conditional put and stores it in two
steps, which real stores do in one.
"""

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if __name__ == "__main__":
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", int(sys.argv[1]), app, threaded=False)
    print(f"ready {server.server_port}", flush=True)
    server.serve_forever()
