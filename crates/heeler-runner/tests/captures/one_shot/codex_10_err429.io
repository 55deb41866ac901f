# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":429,"message":"mock says 429"}]'
# exit: 1  wall: 0.73s
   0.279 E Reading additional input from stdin...
   0.419 < {"type":"thread.started","thread_id":"01a1e400-155e-7502-b534-36d617a6b03e"}
   0.547 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.613 < {"type":"turn.started"}
   0.659 < {"type":"error","message":"exceeded retry limit, last status: 429 Too Many Requests, request id: req_mock21"}
   0.669 < {"type":"turn.failed","error":{"message":"exceeded retry limit, last status: 429 Too Many Requests, request id: req_mock21"}}
