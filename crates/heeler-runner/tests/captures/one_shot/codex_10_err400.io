# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":400,"message":"mock says 400"}]'
# exit: 1  wall: 0.78s
   0.379 E Reading additional input from stdin...
   0.521 < {"type":"thread.started","thread_id":"01a1e400-0a4d-7201-8485-a48de2598813"}
   0.603 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.667 < {"type":"turn.started"}
   0.724 < {"type":"error","message":"{\"error\": {\"message\": \"mock says 400\", \"type\": \"invalid_request_error\", \"param\": null, \"code\": null}}"}
   0.751 < {"type":"turn.failed","error":{"message":"{\"error\": {\"message\": \"mock says 400\", \"type\": \"invalid_request_error\", \"param\": null, \"code\": null}}"}}
