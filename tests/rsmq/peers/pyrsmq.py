"""The real PyRSMQ, driven by one JSON request a line: [verb, options]."""

import json
import sys

from rsmq import RedisSMQ

host, port, namespace = sys.argv[1:4]
queue = RedisSMQ(host=host, port=int(port), ns=namespace)
for line in sys.stdin:
    verb, options = json.loads(line)
    command = getattr(queue, verb)()
    for name, value in options.items():
        command = getattr(command, name)(value)
    try:
        answer = {"result": command.execute()}
    except Exception as error:
        answer = {"error": {"name": type(error).__name__, "message": str(error)}}
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()
