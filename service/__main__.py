from attend_service.__main__ import main

if __name__ == "__main__":  # worker processes import this module too
    main(prog_name="python -m service")
