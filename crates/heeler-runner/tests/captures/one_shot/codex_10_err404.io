# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":404,"message":"mock says 404"}]'
# exit: 1  wall: 0.61s
   0.171 E Reading additional input from stdin...
   0.391 < {"type":"thread.started","thread_id":"01a1e400-12a4-74b1-9602-ab1c296b3832"}
   0.408 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.446 < {"type":"turn.started"}
   0.503 < {"type":"error","message":"mock says 404"}
   0.511 < {"type":"turn.failed","error":{"message":"mock says 404"}}
