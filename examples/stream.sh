#!/bin/sh
# Streams an answer with curl and prints its text as it arrives.
# Run: sh examples/stream.sh
curl -sN http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" -d '{
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "temperature": 0,
  "stream": true
}' | sed -un 's/.*"content":"\([^"]*\)".*/\1/p' | tr -d '\n'
# Prints:
# The capital of France is Paris.
