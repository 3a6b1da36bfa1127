/* A program for the sake of the libraries that are preloaded into it. */
int main(void) { return 0; }
