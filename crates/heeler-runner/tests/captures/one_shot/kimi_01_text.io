# cmd: kimi -p 'hello MOCK[{"thinking":"hmm","text":"hi there"}]' --output-format stream-json
# exit: 0  wall: 12.86s
   7.142 < {"role":"meta","type":"system.version","version":"2.1.0"}
   9.670 < {"role":"assistant","content":"hi there"}
   9.676 < {"role":"meta","type":"session.resume_hint","session_id":"session_866ec9bf-7df9-4fa7-8625-b89b1cefa48c","command":"kimi -r session_866ec9bf-7df9-4fa7-8625-b89b1cefa48c","content":"To resume this session: kimi -r session_866ec9bf-7df9-4fa7-8625-b89b1cefa48c"}
