"""Sites at the SuperNodes of Flower, which only dial out; messages are named arrays and words (the extra ``hierfl[flower]``)."""
