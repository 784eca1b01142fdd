# plugins: one module per library that can draw from the pool; each is the only one to import its library, and only
# when it is asked for.
