# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":503,"message":"mock says 503"}]'
# exit: 1  wall: 1.13s
   0.210 E Reading additional input from stdin...
   0.310 < {"type":"thread.started","thread_id":"01a1e400-1d10-7cb2-9cb3-6f5bdeac11a0"}
   0.352 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.375 < {"type":"turn.started"}
   0.630 < {"type":"error","message":"Reconnecting... 1/1 (unexpected status 503 Service Unavailable: mock says 503, url: http://127.0.0.1:41915/v1/responses, request id: req_mock27)"}
   1.052 < {"type":"error","message":"unexpected status 503 Service Unavailable: mock says 503, url: http://127.0.0.1:41915/v1/responses, request id: req_mock29"}
   1.064 < {"type":"turn.failed","error":{"message":"unexpected status 503 Service Unavailable: mock says 503, url: http://127.0.0.1:41915/v1/responses, request id: req_mock29"}}
