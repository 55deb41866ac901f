# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":401,"message":"mock says 401"}]'
# exit: 1  wall: 0.70s
   0.191 E Reading additional input from stdin...
   0.284 < {"type":"thread.started","thread_id":"01a1e400-0c80-71c3-8077-680ba91391af"}
   0.354 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.386 < {"type":"turn.started"}
   0.436 < {"type":"error","message":"Reconnecting... 1/1 (unexpected status 401 Unauthorized: mock says 401, url: http://127.0.0.1:41915/v1/responses, request id: req_mock16)"}
   0.662 < {"type":"error","message":"unexpected status 401 Unauthorized: mock says 401, url: http://127.0.0.1:41915/v1/responses, request id: req_mock17"}
   0.673 < {"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized: mock says 401, url: http://127.0.0.1:41915/v1/responses, request id: req_mock17"}}
