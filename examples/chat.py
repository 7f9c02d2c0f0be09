"""A chat with a compiled decoder: python chat.py model.so"""

import sys

import heteroplace
from heteroplace.parts.text.text_tokenizer import TextTokenizer

executor = heteroplace.load(sys.argv[1])
tokenizer = TextTokenizer(executor.tokenizer, sys.argv[1])
stop_ids = [*tokenizer.stop_ids, tokenizer.chat_end()]
session = executor.session()
print("you: ", end="", flush=True)
for line in sys.stdin:
    ids = tokenizer.encode_chat(line.strip())
    for text in tokenizer.texts(session.generate(ids, stop_ids=stop_ids)):
        print(text, end="", flush=True)
    print("\nyou: ", end="", flush=True)
