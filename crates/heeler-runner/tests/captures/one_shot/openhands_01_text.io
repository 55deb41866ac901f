# cmd: openhands --headless --json --override-with-envs -t 'hello MOCK[{"text":"hi there"}]'
# exit: 0  wall: 32.10s
  12.077 E /base/py/openhands/lib/python3.12/site-packages/openhands/sdk/llm/auth/openai.py:25: AuthlibDeprecationWarning: authlib.jose module is deprecated, please use joserfc instead.
  12.077 E It will be compatible before version 2.0.0.
  12.077 E   from authlib.jose import JsonWebKey, jwt
  18.553 E [11/16/26 11:40:50] ERROR    Git command failed: git clone --depth 1 utils.py:48
  18.553 E                              --branch main
  18.553 E                              https://github.com/OpenHands/extensions
  18.553 E                              /base/home/.openhands/cac
  18.553 E                              he/skills/public-skills. Exit code:
  18.553 E                              128. Stderr: Cloning into
  18.553 E                              '/base/home/.openhands/ca
  18.553 E                              che/skills/public-skills'...
  18.553 E                              fatal: unable to access
  18.553 E                              'https://github.com/OpenHands/extension
  18.553 E                              s/': Could not resolve host: github.com
  18.553 E
  18.915 E [11/16/26 11:40:50] ERROR    Git command failed: git clone --depth 1 utils.py:48
  18.915 E                              --branch main
  18.915 E                              https://github.com/OpenHands/extensions
  18.915 E                              /base/home/.openhands/cac
  18.915 E                              he/skills/public-skills. Exit code:
  18.915 E                              128. Stderr: Cloning into
  18.915 E                              '/base/home/.openhands/ca
  18.915 E                              che/skills/public-skills'...
  18.915 E                              fatal: unable to access
  18.915 E                              'https://github.com/OpenHands/extension
  18.915 E                              s/': Could not resolve host: github.com
  18.915 E
  19.007 E [11/16/26 11:40:50] ERROR    Git command failed: git clone --depth 1 utils.py:48
  19.007 E                              --branch main
  19.007 E                              https://github.com/OpenHands/extensions
  19.007 E                              /base/home/.openhands/cac
  19.007 E                              he/skills/public-skills. Exit code:
  19.007 E                              128. Stderr: Cloning into
  19.007 E                              '/base/home/.openhands/ca
  19.007 E                              che/skills/public-skills'...
  19.007 E                              fatal: unable to access
  19.007 E                              'https://github.com/OpenHands/extension
  19.007 E                              s/': Could not resolve host: github.com
  19.007 E
  19.722 E [11/16/26 11:40:51] ERROR    Git command failed: git clone --depth 1 utils.py:48
  19.722 E                              --branch main
  19.722 E                              https://github.com/OpenHands/extensions
  19.722 E                              /base/home/.openhands/cac
  19.722 E                              he/skills/public-skills. Exit code:
  19.722 E                              128. Stderr: Cloning into
  19.722 E                              '/base/home/.openhands/ca
  19.722 E                              che/skills/public-skills'...
  19.722 E                              fatal: unable to access
  19.722 E                              'https://github.com/OpenHands/extension
  19.722 E                              s/': Could not resolve host: github.com
  19.722 E
  28.009 < OpenHands CLI terminal UI may not work correctly in this environment: Rich detected a non-interactive or unsupported terminal; interactive UI may not render correctly
  28.009 < To override Rich's detection, you can set TTY_INTERACTIVE=1 (and optionally TTY_COMPATIBLE=1).
  28.009 < Initializing agent...
  28.009 < ✓ Agent initialized with model: openai/mock-model
  28.009 < {"id": "cc4616dc-a85f-4985-8e9d-3d022fa2e479", "timestamp": "2026-11-16T11:40:55.962947", "source": "user", "llm_message": {"role": "user", "content": [{"cache_prompt": false, "type": "text", "text": "hello MOCK[{\"text\":\"hi there\"}]"}], "tool_calls": null, "tool_call_id": null, "name": null, "reasoning_content": null, "thinking_blocks": [], "responses_reasoning_item": null}, "llm_response_id": null, "activated_skills": [], "extended_content": [], "sender": null, "critic_result": null, "kind": "MessageEvent"}
  28.009 < Agent is working
  28.009 < {"id": "1635c26c-9389-4587-aedf-14144deeba62", "timestamp": "2026-11-16T11:40:59.633367", "source": "agent", "llm_message": {"role": "assistant", "content": [{"cache_prompt": false, "type": "text", "text": "hi there"}], "tool_calls": null, "tool_call_id": null, "name": null, "reasoning_content": null, "thinking_blocks": [], "responses_reasoning_item": null}, "llm_response_id": "chatcmpl-33baf9a433e0460a84f2", "activated_skills": [], "extended_content": [], "sender": null, "critic_result": null, "kind": "MessageEvent"}
  28.009 < Agent finished
  28.009 <
  28.009 < ───────────────────────────── CONVERSATION SUMMARY ─────────────────────────────
  28.009 < Number of agent messages: 2
  28.009 < Last message sent by the agent:
  28.009 < ╭─ Agent ──╮
  28.009 < │ hi there │
  28.009 < ╰──────────╯
  28.009 < ────────────────────────────────────────────────────────────────────────────────
  28.009 < Goodbye! 👋
  28.012 < Conversation ID: e4a00212e0a1435386c9f25dd4dc9252
  28.013 < Hint: run openhands --resume e4a00212-e0a1-4353-86c9-f25dd4dc9252 to resume this
  28.013 < conversation.
