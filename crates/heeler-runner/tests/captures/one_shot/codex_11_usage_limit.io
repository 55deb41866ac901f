# cmd: codex exec --json --skip-git-repo-check 'err MOCK[{"error":429,"type":"usage_limit_reached","message":"The usage limit has been reached","extra":{"plan_type":"plus","resets_at":1794900000,"resets_in_seconds":7200},"headers":{"x-codex-primary-used-percent":"100","x-codex-primary-window-minutes":"300","x-codex-primary-reset-at":"1794900000"}}]'
# exit: 1  wall: 0.52s
   0.228 E Reading additional input from stdin...
   0.319 < {"type":"thread.started","thread_id":"01a1e400-21b8-7380-aa21-17955e8965a5"}
   0.362 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.389 < {"type":"turn.started"}
   0.492 < {"type":"error","message":"You’ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit https://chatgpt.com/settings/usage to purchase more credits or try again at Nov 17th, 2026 7:20 AM."}
   0.505 < {"type":"turn.failed","error":{"message":"You’ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit https://chatgpt.com/settings/usage to purchase more credits or try again at Nov 17th, 2026 7:20 AM."}}
