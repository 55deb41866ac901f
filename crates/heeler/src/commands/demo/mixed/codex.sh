#!/bin/sh
# Stands for Codex in the demo: speaks the protocol of `codex app-server`, and follows a script.
reply() { printf '{"id":%s,"result":%s}\n' "$id" "$1"; }
tell() { printf '{"method":"%s","params":{"threadId":"demo","turnId":"1",%s}}\n' "$1" "$2"; }
command='"type":"commandExecution","id":"c1","command":"echo Hello > greeting.txt"'
while read -r line; do
  id=${line#*'"id":'}
  id=${id%%[!0-9]*}
  case $line in
    *'"method":"initialize"'*) reply '{"userAgent":"stand-in"}' ;;
    *'"method":"thread/start"'*) reply '{"thread":{"id":"demo"},"model":"scripted"}' ;;
    *'"method":"turn/start"'*)
      reply '{"turn":{"id":"1","status":"inProgress"}}'
      tell item/started "\"item\":{$command,\"status\":\"inProgress\"}"
      echo Hello > greeting.txt
      tell item/completed "\"item\":{$command,\"status\":\"completed\",\"exitCode\":0}"
      tell item/completed '"item":{"type":"agentMessage","id":"m1","text":"I wrote greeting.txt."}'
      tell turn/completed '"turn":{"id":"1","status":"completed","error":null}'
      ;;
  esac
done
