from experiments.common.runner import main

if __name__ == "__main__":
    main("dense_retrieval")
